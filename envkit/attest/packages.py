"""The packages of an image from its layers, read from the top down and no further than the lock that envkit put there.

What a container would see counts: a path that a higher layer removes or replaces is not looked for below it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.attest.content import CONDA, DEB, WHEEL, Package, of_lock, ordered
from envkit.image.tarstream import Kind, entries

if TYPE_CHECKING:
    from envkit.image.opening import Opened
    from envkit.image.tarstream import Source
    from envkit.lock.model import Lock

STATUS = "var/lib/dpkg/status"
LOCK, PLAN = "usr/share/envkit/envkit.lock", "usr/share/envkit/plan.json"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DIST = re.compile(
    r"(?:^|/)(?:site|dist)-packages/(?P<name>[A-Za-z0-9_.]{1,80})-(?P<version>[^/-]{1,60})\.dist-info(?:/METADATA)?$"
)
_CONDA = re.compile(r"(?:^|/)conda-meta/(?P<name>.{1,80})-(?P<version>[^-/]{1,60})-(?P<build>[^-/]{1,120})\.json$")
_INSTALLER = re.compile(r"(?P<folder>(?:^|.*/)(?:site|dist)-packages/[^/]{1,160}\.dist-info)/INSTALLER$")
_CACHE = re.compile(r"(?:^|/)pkgs/")  # conda's archives, unpacked: nothing there is installed
_DPKG = re.compile(r"^var/lib/dpkg/(?:status|status\.d/[^/]{1,200})$")
# Folders of envkit's images in which packages are, and those above: who removes one removes what no list names.
_PLACES = re.compile(
    r"(?:opt(?:/env(?:/conda-meta|/lib(?:/python3[^/]*(?:/site-packages)?)?)?)?|var(?:/lib(?:/dpkg(?:/status)?)?)?)?"
)
RPM = re.compile(r"^(?:var/lib|usr/lib/sysimage)/rpm/[^/]{1,200}$")
_MOST_TEXT = 64 << 20


@dataclass(slots=True)
class Seen:
    """What shows of the paths that matter, gathered from the top layer down."""

    files: dict[str, bytes] = field(default_factory=dict)  # content of the lock, the plan and dpkg's files alone
    removed: set[str] = field(default_factory=set)  # by a whiteout: the path and all below it
    opaque: set[str] = field(default_factory=set)  # folders whose lower content is hidden
    read: int = 0  # layers
    swept: bool = False  # down to the lock, a whole folder of packages is removed: it does not tell what is left

    def add(self, source: Source) -> None:
        """Take in the next layer down.

        Raises:
            IntegrityError: it is no tar.
        """
        whiteouts: set[str] = set()
        opaque: set[str] = set()
        for entry in entries(source):
            name = posixpath.normpath(entry.name).lstrip("/")
            folder, base = posixpath.split(name)
            if base == _OPAQUE:
                opaque.add(folder)
            elif base.startswith(_WHITEOUT):
                whiteouts.add(posixpath.join(folder, base.removeprefix(_WHITEOUT)))
            elif entry.kind in (Kind.FILE, Kind.HARD_LINK) and matters(name) and not self._hidden(name):
                text = name in (LOCK, PLAN) or _DPKG.match(name) or name.endswith("/INSTALLER")
                wanted = entry.kind is Kind.FILE and text and entry.size <= _MOST_TEXT
                self.files.setdefault(name, source.exactly(entry.size) if wanted else b"")
        # What a layer removes is what lies below it.
        self.removed |= whiteouts
        self.opaque |= opaque
        self.read += 1

    def _hidden(self, name: str) -> bool:
        above = [str(one) for one in _parents(name)]
        return name in self.removed or any(one in self.removed or one in self.opaque for one in above)


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
        with opened.tar(place) as source:
            seen.add(source)
        if LOCK in seen.files and not asked:
            asked = True
            # A folder that is replaced by new files shows these, and they say nothing of the old ones.
            seen.swept = any(_PLACES.fullmatch(folder) for folder in (*seen.removed, *seen.opaque))
            if sound(seen.files[LOCK]) and not seen.swept:
                break
    return seen


def installed(seen: Seen, lock: Lock | None) -> tuple[Package, ...]:
    """The packages: the lock's as far as layers above it left them alone, and what those layers or all layers show."""
    shown = [*_python(seen.files), *_debian(seen.files)]
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
    return any(_DIST.search(name) or _CONDA.search(name) or _DPKG.match(name) for name in (*seen.files, *seen.removed))


def matters(name: str) -> bool:
    """Whether a path tells of a package, or is one of envkit's own documents."""
    if name in (LOCK, PLAN) or _DPKG.match(name) or RPM.match(name):
        return True
    if _CACHE.search(name):
        return False
    if name.endswith((".dist-info/METADATA", ".dist-info/INSTALLER")):
        return _DIST.search(posixpath.dirname(name)) is not None
    return name.endswith(".json") and _CONDA.search(name) is not None


def _python(files: Mapping[str, bytes]) -> list[Package]:
    """Conda packages, and distributions that no conda package brought."""
    conda = [_conda(match) for name in sorted(files) if (match := _CONDA.search(name))]
    brought = {match["folder"] for name, text in files.items()
               if (match := _INSTALLER.match(name)) and text.strip() == b"conda"}  # fmt: skip
    wheels = [_wheel(match) for name in sorted(files)
              if (match := _DIST.search(name)) and posixpath.dirname(name) not in brought]  # fmt: skip
    return list(dict.fromkeys([*conda, *wheels]))


def _removed(paths: Iterable[str]) -> Iterator[Package]:
    for path in paths:
        if match := _CONDA.search(path):
            yield _conda(match)
        elif match := _DIST.search(path):
            yield _wheel(match)


def _conda(match: re.Match[str]) -> Package:
    return Package(kind=CONDA, name=match["name"], version=match["version"], build=match["build"])


def _wheel(match: re.Match[str]) -> Package:
    return Package(kind=WHEEL, name=normal(match["name"]), version=match["version"])


def normal(name: str) -> str:
    """A distribution's name as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _debian(files: Mapping[str, bytes]) -> Iterator[Package]:
    """The installed packages of dpkg's status file, or of the files that small images have instead."""
    for path in sorted(name for name in files if _DPKG.match(name)):
        for stanza in files[path].decode(errors="replace").split("\n\n"):
            rows = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line[0].isspace())
            if rows.get("Package") and rows.get("Version") and _is_installed(rows.get("Status")):
                yield Package(kind=DEB, name=rows["Package"], version=rows["Version"])


def _is_installed(status: str | None) -> bool:
    return status is None or status.split()[-1:] == ["installed"]


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name
    yield ""
