"""The packages of an image from its layers, read from the top down and no further than the lock that envkit put there.

What a container would see counts: a path that a higher layer removes or replaces is not looked for below it.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from envkit.attest.content import CONDA, DEB, WHEEL, Package, of_lock, ordered
from envkit.image import rpm
from envkit.image.packages import DPKG, LOCK, PLAN, PYPI, STATUS, UNPACKED, Installed, debian, named, normal, rpms
from envkit.image.tarstream import Kind
from envkit.image.tree import Changes, Interest, scan

if TYPE_CHECKING:
    from envkit.image.opening import Opened
    from envkit.image.tarstream import Source
    from envkit.lock.model import Lock

_INSTALLER = re.compile(r"(?P<folder>(?:^|.*/)(?:site|dist)-packages/[^/]{1,160}\.dist-info)/INSTALLER$")
# Folders of envkit's images in which packages are, and those above: who removes one removes what no list names.
_PLACES = re.compile(
    r"(?:opt(?:/env(?:/conda-meta|/lib(?:/python3[^/]*(?:/site-packages)?)?)?)?|var(?:/lib(?:/dpkg(?:/status)?)?)?)?"
)


@dataclass(slots=True)
class Seen:
    """What shows of the paths that matter, gathered from the top layer down."""

    files: dict[str, bytes] = field(default_factory=dict)  # content of the lock, the plan and dpkg's files alone
    above: list[Changes] = field(default_factory=list)  # the layers that were read
    swept: bool = False  # down to the lock, a whole folder of packages is removed: it does not tell what is left

    @property
    def read(self) -> int:
        """How many layers were read."""
        return len(self.above)

    @property
    def removed(self) -> Iterator[str]:
        """The paths that the layers take away from those below them."""
        for layer in self.above:
            yield from layer.removed
            yield from layer.covered  # a link in place of a package's folder

    def add(self, tar: Callable[[], AbstractContextManager[Source]]) -> None:
        """Take in the next layer down.

        Raises:
            IntegrityError: it is not a tar.
        """
        changes = scan(tar, _INTEREST)
        for path, node in changes.nodes.items():
            if node.kind is Kind.FILE and not any(layer.hides(path, Kind.FILE) for layer in self.above):
                self.files.setdefault(path, node.value or b"")
        self.above.append(changes)

    def sweeps(self) -> bool:
        """Whether a whole folder of packages is taken away: new files in it say nothing of the old ones."""
        taken = {path for layer in self.above for path in (*layer.removed, *layer.opaque)}
        covered = {path for layer in self.above for path in layer.covered if path != STATUS}  # dpkg writes it again
        return any(_PLACES.fullmatch(path) for path in (*taken, *covered))


def look(opened: Opened, *, at_most: int | None, sound: Callable[[bytes], bool]) -> Seen:
    """Read layers from the top until the lock shows, or until one would have to be downloaded that is too large.

    Args:
        opened: the image.
        at_most: bytes to download for one layer; None: whatever it takes.
        sound: whether a lock will do; asked once, and where it will not, or nothing is left of a whole folder of its
            packages, all layers are read.

    Raises:
        As `Opened.tar`.
    """
    seen, asked = Seen(), False
    for index in reversed(range(len(opened.layers))):
        if at_most is not None and opened.cost(index) > at_most:
            break
        seen.add(functools.partial(opened.tar, index))
        if LOCK in seen.files and not asked:
            asked = True
            seen.swept = seen.sweeps()
            if sound(seen.files[LOCK]) and not seen.swept:
                break
    return seen


def installed(seen: Seen, lock: Lock | None) -> tuple[Package, ...]:
    """The packages: the lock's as far as layers above it left them alone, and what those layers or all layers show."""
    shown = [*_python(seen.files), *_debian(seen.files), *_rpm(seen.files)]
    if lock is None:
        return ordered(shown)
    names = {(package.kind, package.name) for package in [*shown, *_removed(seen.removed)]}
    own = [package for package in of_lock(lock) if (package.kind, package.name) not in names]
    if any(package.kind == DEB for package in shown):  # dpkg's file lists every package, those of the lock too
        known = {(package.name, package.version): package for package in of_lock(lock) if package.kind == DEB}
        own = [package for package in own if package.kind != DEB]
        shown = [
            known.get((package.name, package.version), package) if package.kind == DEB else package for package in shown
        ]
    return ordered([*own, *shown])


def touched(seen: Seen) -> bool:
    """Whether the layers that were read show or remove a package."""
    return any(
        named(path) is not None or DPKG.match(path) or path in rpm.FILES for path in (*seen.files, *seen.removed)
    )


def matters(path: str) -> bool:
    """Whether a path tells of a package, or is one of envkit's own documents."""
    if path in (LOCK, PLAN) or DPKG.match(path) or rpm.PLACE.match(path):
        return True
    if path.endswith(".dist-info/INSTALLER"):
        return _INSTALLER.match(path) is not None and UNPACKED.search(path) is None
    return path.endswith(("/METADATA", ".json")) and named(path) is not None


_INTEREST = Interest(
    keeps=matters,
    reads=lambda path, _mode: (
        path in (LOCK, PLAN) or path.endswith("/INSTALLER") or path in rpm.FILES or bool(DPKG.match(path))
    ),
)


def _python(files: Mapping[str, bytes]) -> list[Package]:
    """Conda packages, and distributions that no conda package brought."""
    brought = {match["folder"] for name, text in files.items()
               if (match := _INSTALLER.match(name)) and text.strip() == b"conda"}  # fmt: skip
    rows = [(name, row) for name in sorted(files) if (row := named(name)) is not None]
    conda = [_package(package) for _, package in rows if package.kind == CONDA]
    wheels = [
        _package(package) for name, package in rows if package.kind == PYPI and posixpath.dirname(name) not in brought
    ]
    return list(dict.fromkeys([*conda, *wheels]))


def _package(package: Installed) -> Package:
    kind = WHEEL if package.kind == PYPI else package.kind
    return Package(kind=kind, name=package.name, version=package.version, build=package.build)


def _removed(paths: Iterable[str]) -> Iterator[Package]:
    yield from (_package(package) for path in paths if (package := named(path)) is not None)


def _debian(files: Mapping[str, bytes]) -> Iterator[Package]:
    """The installed packages of dpkg's status file, or of the files that small images have instead."""
    for path in sorted(name for name in files if DPKG.match(name)):
        yield from (
            Package(kind=DEB, name=package.name, version=package.version)
            for package in debian(files[path])
            if package.version
        )


def _rpm(files: Mapping[str, bytes]) -> Iterator[Package]:
    """The packages of rpm's databases that can be read."""
    for path in sorted(name for name in files if name in rpm.FILES):
        yield from map(_package, rpms(files[path]) or ())


def unlisted(files: Mapping[str, bytes]) -> bool:
    """Whether there are RPM packages whose database cannot be read."""
    databases = [data for name, data in files.items() if name in rpm.FILES]
    return any(map(rpm.PLACE.match, files)) and (not databases or any(rpms(database) is None for database in databases))


def with_lock(packages: Iterable[Installed], lock: Lock) -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """The packages with what a lock knows of their archives, and what the lock names and the image lacks."""
    known: dict[tuple[str, ...], tuple[str | None, str | None, str]] = {}
    for conda in lock.conda:
        known[CONDA, conda.name, conda.version, conda.build] = (conda.sha256, conda.url, conda.channel)
    for wheel in lock.wheels:
        known[PYPI, normal(wheel.name), wheel.version, ""] = (wheel.sha256, wheel.download, "")
    for deb in lock.base.packages:
        known[DEB, deb.name, deb.version, ""] = (deb.sha256, None, "")
    rows, met = [], set()
    for package in packages:
        key = (package.kind, package.name, package.version, package.build or "")
        sha256, url, channel = known.get(key, (None, None, ""))
        if key not in known or (package.sha256 and sha256 and package.sha256 != sha256):
            rows.append(package)
            continue
        met.add(key)
        rows.append(
            replace(
                package,
                sha256=sha256 or package.sha256,
                url=url or package.url,
                channel=channel or package.channel,
                locked=True,
            )
        )
    return tuple(rows), tuple(sorted(f"{key[0]} {key[1]} {key[2]}" for key in known if key not in met))
