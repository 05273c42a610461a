"""The packages of an image, from its layers: read from the top down, only as far as the lock that envkit put there.

The result is what a container would see: a path that a higher layer removes or replaces is hidden in lower ones.
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

# opt/env/lib/python3.11/site-packages/numpy-2.1.0.dist-info/INSTALLER; conda writes `conda` into it, pip `pip`.
_INSTALLER = re.compile(r"(?P<folder>(?:^|.*/)(?:site|dist)-packages/[^/]{1,160}\.dist-info)/INSTALLER$")
# Folders of packages in envkit's images, and their parents. A layer that removes one removes packages without naming
# them.
_PACKAGE_FOLDERS = re.compile(
    r"(?:opt(?:/env(?:/conda-meta|/lib(?:/python3[^/]*(?:/site-packages)?)?)?)?|var(?:/lib(?:/dpkg(?:/status)?)?)?)?"
)


@dataclass(slots=True)
class PackageFiles:
    """The files that list packages, gathered from the top layer down."""

    files: dict[str, bytes] = field(default_factory=dict)  # with contents only where `_INTEREST` reads them
    above: list[Changes] = field(default_factory=list)  # the layers that were read
    folder_removed: bool = False  # a layer above the lock removes a whole folder of packages, so the lock is outdated

    @property
    def read(self) -> int:
        """The number of layers that were read."""
        return len(self.above)

    @property
    def removed(self) -> Iterator[str]:
        """The paths that the layers remove from the layers below them."""
        for layer in self.above:
            yield from layer.removed
            yield from layer.covered  # for example a link in place of a package's folder

    def add(self, tar: Callable[[], AbstractContextManager[Source]]) -> None:
        """Add the next lower layer.

        Raises:
            IntegrityError: the layer is not a tar.
        """
        changes = scan(tar, _INTEREST)
        for path, node in changes.nodes.items():
            if node.kind is Kind.FILE and not any(layer.hides(path, Kind.FILE) for layer in self.above):
                # The layers come from the top down, so the first content of a path is the visible one.
                self.files.setdefault(path, node.value or b"")
        self.above.append(changes)

    def removes_folder(self) -> bool:
        """Return whether the layers remove a whole folder of packages, without naming the packages in it."""
        removed = {path for layer in self.above for path in (*layer.removed, *layer.opaque)}
        covered = {path for layer in self.above for path in layer.covered if path != STATUS}  # dpkg replaces that file
        return any(_PACKAGE_FOLDERS.fullmatch(path) for path in (*removed, *covered))


def read_from_top(opened: Opened, *, at_most: int | None, is_valid: Callable[[bytes], bool]) -> PackageFiles:
    """Read layers from the top down to the lock, or to a layer that is too large to download.

    Args:
        opened: the image.
        at_most: bytes to download for one layer; None: no limit.
        is_valid: checks the lock; called once. If the lock is invalid, or a layer above it removes a whole folder of
            packages, all layers are read.

    Raises:
        EnvkitError: as `Opened.tar`.
    """
    listed, checked = PackageFiles(), False
    for index in reversed(range(len(opened.layers))):
        if at_most is not None and opened.cost(index) > at_most:
            break
        listed.add(functools.partial(opened.tar, index))
        # Only the uppermost lock is visible in the image.
        if LOCK in listed.files and not checked:
            checked = True
            listed.folder_removed = listed.removes_folder()
            if is_valid(listed.files[LOCK]) and not listed.folder_removed:
                break
    return listed


def installed(listed: PackageFiles, lock: Lock | None) -> tuple[Package, ...]:
    """Return the packages of the lock that no layer above it changed, and those that the layers list."""
    shown = [*_python(listed.files), *_debian(listed.files), *_rpm(listed.files)]
    if lock is None:
        return ordered(shown)
    changed = {(package.kind, package.name) for package in [*shown, *_removed(listed.removed)]}
    unchanged = [package for package in of_lock(lock) if (package.kind, package.name) not in changed]
    if any(package.kind == DEB for package in shown):  # dpkg's file lists every package, including those of the lock
        locked = {(package.name, package.version): package for package in of_lock(lock) if package.kind == DEB}
        unchanged = [package for package in unchanged if package.kind != DEB]
        shown = [
            locked.get((package.name, package.version), package) if package.kind == DEB else package
            for package in shown
        ]
    return ordered([*unchanged, *shown])


def changes_packages(listed: PackageFiles) -> bool:
    """Return whether the layers that were read add or remove a package."""
    return any(
        named(path) is not None or DPKG.match(path) or path in rpm.FILES for path in (*listed.files, *listed.removed)
    )


def is_relevant(path: str) -> bool:
    """Return whether a file lists a package or is envkit's lock or plan."""
    if path in (LOCK, PLAN) or DPKG.match(path) or rpm.PLACE.match(path):
        return True
    if path.endswith(".dist-info/INSTALLER"):
        return _INSTALLER.match(path) is not None and UNPACKED.search(path) is None
    return path.endswith(("/METADATA", ".json")) and named(path) is not None


_INTEREST = Interest(
    keeps=is_relevant,
    reads=lambda path, _mode: (
        path in (LOCK, PLAN) or path.endswith("/INSTALLER") or path in rpm.FILES or bool(DPKG.match(path))
    ),
)


def _python(files: Mapping[str, bytes]) -> list[Package]:
    """Return conda packages, and Python distributions that are not part of a conda package."""
    from_conda = {match["folder"] for name, text in files.items()
                  if (match := _INSTALLER.match(name)) and text.strip() == b"conda"}  # fmt: skip
    rows = [(name, row) for name in sorted(files) if (row := named(name)) is not None]
    conda = [_package(package) for _, package in rows if package.kind == CONDA]
    wheels = [
        _package(package)
        for name, package in rows
        if package.kind == PYPI and posixpath.dirname(name) not in from_conda
    ]
    return list(dict.fromkeys([*conda, *wheels]))


def _package(package: Installed) -> Package:
    kind = WHEEL if package.kind == PYPI else package.kind
    return Package(kind=kind, name=package.name, version=package.version, build=package.build)


def _removed(paths: Iterable[str]) -> Iterator[Package]:
    yield from (_package(package) for path in paths if (package := named(path)) is not None)


def _debian(files: Mapping[str, bytes]) -> Iterator[Package]:
    """Yield the installed packages of dpkg's status file, or of the files that distroless images have instead."""
    for path in sorted(name for name in files if DPKG.match(name)):
        yield from (
            Package(kind=DEB, name=package.name, version=package.version)
            for package in debian(files[path])
            if package.version
        )


def _rpm(files: Mapping[str, bytes]) -> Iterator[Package]:
    """Yield the packages of the rpm databases that can be read."""
    for path in sorted(name for name in files if name in rpm.FILES):
        yield from map(_package, rpms(files[path]) or ())


def unlisted(files: Mapping[str, bytes]) -> bool:
    """Return whether there are RPM packages whose database cannot be read."""
    databases = [data for name, data in files.items() if name in rpm.FILES]
    return any(map(rpm.PLACE.match, files)) and (not databases or any(rpms(database) is None for database in databases))


def with_lock(packages: Iterable[Installed], lock: Lock) -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """Add hashes, URLs and channels from a lock to packages; also return the lock's packages that are missing."""
    known: dict[tuple[str, ...], tuple[str | None, str | None, str]] = {}
    for conda in lock.conda:
        known[CONDA, conda.name, conda.version, conda.build] = (conda.sha256, conda.url, conda.channel)
    for wheel in lock.wheels:
        known[PYPI, normal(wheel.name), wheel.version, ""] = (wheel.sha256, wheel.download, "")
    for deb in lock.base.packages:
        known[DEB, deb.name, deb.version, ""] = (deb.sha256, None, "")
    rows, matched = [], set()
    for package in packages:
        key = (package.kind, package.name, package.version, package.build or "")
        sha256, url, channel = known.get(key, (None, None, ""))
        # The same version with other bytes was not installed from the lock.
        if key not in known or (package.sha256 and sha256 and package.sha256 != sha256):
            rows.append(package)
            continue
        matched.add(key)
        rows.append(
            replace(
                package,
                sha256=sha256 or package.sha256,
                url=url or package.url,
                channel=channel or package.channel,
                locked=True,
            )
        )
    return tuple(rows), tuple(sorted(f"{key[0]} {key[1]} {key[2]}" for key in known if key not in matched))
