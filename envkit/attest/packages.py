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
        for one in self.above:
            yield from one.removed
            yield from one.covered  # a link in place of a package's folder

    def add(self, tar: Callable[[], AbstractContextManager[Source]]) -> None:
        """Take in the next layer down.

        Raises:
            IntegrityError: it is no tar.
        """
        found = scan(tar, _INTEREST)
        for path, node in found.nodes.items():
            if node.kind is Kind.FILE and not any(one.hides(path, Kind.FILE) for one in self.above):
                self.files.setdefault(path, node.value or b"")
        self.above.append(found)

    def sweeps(self) -> bool:
        """Whether a whole folder of packages is taken away: new files in it say nothing of the old ones."""
        taken = {path for one in self.above for path in (*one.removed, *one.opaque)}
        covered = {path for one in self.above for path in one.covered if path != STATUS}  # dpkg writes it again
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
    for place in reversed(range(len(opened.layers))):
        if at_most is not None and opened.cost(place) > at_most:
            break
        seen.add(functools.partial(opened.tar, place))
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
    names = {(one.kind, one.name) for one in [*shown, *_removed(seen.removed)]}
    own = [one for one in of_lock(lock) if (one.kind, one.name) not in names]
    if any(one.kind == DEB for one in shown):  # dpkg's file lists every package, those of the lock too
        known = {(one.name, one.version): one for one in of_lock(lock) if one.kind == DEB}
        own = [one for one in own if one.kind != DEB]
        shown = [known.get((one.name, one.version), one) if one.kind == DEB else one for one in shown]
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
    rows = [(name, one) for name in sorted(files) if (one := named(name)) is not None]
    conda = [_package(one) for _, one in rows if one.kind == CONDA]
    wheels = [_package(one) for name, one in rows if one.kind == PYPI and posixpath.dirname(name) not in brought]
    return list(dict.fromkeys([*conda, *wheels]))


def _package(one: Installed) -> Package:
    kind = WHEEL if one.kind == PYPI else one.kind
    return Package(kind=kind, name=one.name, version=one.version, build=one.build)


def _removed(paths: Iterable[str]) -> Iterator[Package]:
    yield from (_package(one) for path in paths if (one := named(path)) is not None)


def _debian(files: Mapping[str, bytes]) -> Iterator[Package]:
    """The installed packages of dpkg's status file, or of the files that small images have instead."""
    for path in sorted(name for name in files if DPKG.match(name)):
        yield from (Package(kind=DEB, name=one.name, version=one.version) for one in debian(files[path]) if one.version)


def _rpm(files: Mapping[str, bytes]) -> Iterator[Package]:
    """The packages of rpm's databases that can be read."""
    for path in sorted(name for name in files if name in rpm.FILES):
        yield from map(_package, rpms(files[path]) or ())


def unlisted(files: Mapping[str, bytes]) -> bool:
    """Whether there are RPM packages whose database cannot be read."""
    databases = [data for name, data in files.items() if name in rpm.FILES]
    return any(map(rpm.PLACE.match, files)) and (not databases or any(rpms(one) is None for one in databases))


def with_lock(packages: Iterable[Installed], lock: Lock) -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """The packages with what a lock knows of their archives, and what the lock names and the image lacks."""
    known: dict[tuple[str, ...], tuple[str | None, str | None, str]] = {}
    for conda in lock.conda:
        known[CONDA, conda.name, conda.version, conda.build] = (conda.sha256, conda.url, conda.channel)
    for wheel in lock.wheels:
        known[PYPI, normal(wheel.name), wheel.version, ""] = (wheel.sha256, wheel.download, "")
    for deb in lock.base.packages:
        known[DEB, deb.name, deb.version, ""] = (deb.sha256, None, "")
    found, met = [], set()
    for one in packages:
        key = (one.kind, one.name, one.version, one.build or "")
        sha256, url, channel = known.get(key, (None, None, ""))
        if key not in known or (one.sha256 and sha256 and one.sha256 != sha256):
            found.append(one)
            continue
        met.add(key)
        found.append(
            replace(one, sha256=sha256 or one.sha256, url=url or one.url, channel=channel or one.channel, locked=True)
        )
    return tuple(found), tuple(sorted(f"{key[0]} {key[1]} {key[2]}" for key in known if key not in met))
