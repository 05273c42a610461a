"""The merged tree of a base image: its paths, and the contents of the few files that an image on top needs."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from envkit.ground import imagepaths
from envkit.ground.errors import EngineError, IntegrityError
from envkit.ground.imagepaths import OPAQUE, WHITEOUT
from envkit.image import spec, zstd
from envkit.image.deflate import GZIP_FAULTS, open_gzip
from envkit.image.layout import blob_of

if TYPE_CHECKING:
    from pathlib import Path

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"
_KEPT = ("etc/passwd", "etc/group", "var/lib/dpkg/status")
_KEPT_BELOW = "var/lib/dpkg/status.d/"
_SET_IDS = 0o6000
_LARGEST = 64 << 20  # bytes of one kept file
_MOST_LINKS = 40  # as in the kernel
_FAULTS: tuple[type[Exception], ...] = (tarfile.TarError, *GZIP_FAULTS, *zstd.FAULTS)


@dataclass(frozen=True, slots=True)
class Entry:
    """One path; `data` is kept for the few files whose contents matter, and for what changes its user when run."""

    kind: str
    mode: int
    target: str = ""  # of a link
    data: bytes | None = None
    owner: tuple[int, int] = (0, 0)  # user and group


_IMPLIED = Entry(FOLDER, 0o755)


class BaseFiles:
    """The paths of a root file system, without leading slash."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self._entries = entries

    def find(self, path: str) -> Entry | None:
        """Return what an absolute path leads to, links followed; None where it leads to nothing."""
        waiting, at, links = path.strip("/").split("/")[::-1], "", 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = posixpath.dirname(at)
                continue
            place = f"{at}/{part}" if at else part
            entry = self._entries.get(place)
            if entry is None:
                return None
            if entry.kind != LINK:
                at = place
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            at = "" if entry.target.startswith("/") else at
            waiting += entry.target.split("/")[::-1]
        return self._entries[at] if at else _IMPLIED

    def text(self, path: str) -> str:
        """Return the contents of a kept file, empty where there is none."""
        entry = self.find(path)
        return entry.data.decode(errors="surrogateescape") if entry and entry.data is not None else ""

    def packages(self) -> frozenset[str] | None:
        """Return names of the Debian packages that are installed; None where dpkg keeps no list."""
        below = [entry.data or b"" for path, entry in self._entries.items() if path.startswith(_KEPT_BELOW)]
        text = "\n\n".join([self.text("/var/lib/dpkg/status"), *(data.decode(errors="replace") for data in below)])
        names = set()
        for stanza in text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
            if "Package" in fields and fields.get("Status", "install ok installed").endswith(" installed"):
                names.add(fields["Package"])
                names |= {part.split()[0] for part in fields.get("Provides", "").split(",") if part.strip()}
        return frozenset(names) if names else None

    def set_ids(self) -> dict[str, Entry]:
        """Return files that run as another user or group than who runs them, and folders that give their group away."""
        kinds = (FILE, FOLDER)
        return {path: entry for path, entry in self._entries.items() if entry.kind in kinds and entry.mode & _SET_IDS}


def read(layers: Sequence[spec.Layer]) -> BaseFiles:
    """Return the paths that remain when the layers are laid over one another.

    Raises:
        IntegrityError: a layer is damaged.
    """
    entries: dict[str, Entry] = {}
    for layer in layers:
        blob = blob_of(layer)
        try:
            with _open(blob, layer.descriptor.media_type) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                _lay_over(entries, tar)
        except _FAULTS as error:
            raise IntegrityError(
                f"layer {layer.digest} of the base image cannot be read: {error}", hint="--base IMAGE, or another tag"
            ) from error
    return BaseFiles(entries)


def _open(blob: Path, kind: str) -> IO[bytes]:
    if kind == spec.LAYER_TAR:
        return blob.open("rb")
    if kind == spec.LAYER_ZSTD:
        return zstd.open_zstd(blob.open("rb"), close=True)
    return open_gzip(blob)


def _lay_over(entries: dict[str, Entry], tar: tarfile.TarFile) -> None:
    """Add a layer's members; whiteouts hide what lower layers have, never what their own layer brings."""
    added: dict[str, Entry] = {}
    hidden: list[str] = []
    for member in tar:
        path = posixpath.normpath(f"/{member.name}").strip("/")
        name = posixpath.basename(path)
        if name == OPAQUE:
            hidden.append(f"{posixpath.dirname(path)}/")
        elif name.startswith(WHITEOUT):
            hidden.append(posixpath.join(posixpath.dirname(path), name.removeprefix(WHITEOUT)))
        elif imagepaths.is_reserved(path):
            # A file below such a name is one for some readers and removes others for the rest.
            raise IntegrityError(
                f"a layer of the base image holds {path!r:.200}, below a name that begins with {WHITEOUT}",
                hint="--base with another image",
            )
        elif path:
            added[path] = _entry(member, path, tar, (added, entries))
            above = posixpath.dirname(path)
            while above and above not in added and above not in entries:
                added[above] = _IMPLIED
                above = posixpath.dirname(above)
    for path in hidden:
        gone = path if path.endswith("/") else f"{path}/"
        for known in [one for one in entries if one == path or one.startswith(gone)]:
            del entries[known]
    for path, entry in added.items():
        old = entries.get(path)
        if old is not None and old.kind == FOLDER and entry.kind != FOLDER:
            for known in [one for one in entries if one.startswith(f"{path}/")]:
                del entries[known]
    entries |= added


def _entry(member: tarfile.TarInfo, path: str, tar: tarfile.TarFile, known: Sequence[dict[str, Entry]]) -> Entry:
    if member.islnk():
        owner = posixpath.normpath(f"/{member.linkname}").strip("/")
        return next((table[owner] for table in known if owner in table), Entry(FILE, member.mode))
    if member.issym():
        return Entry(LINK, 0o777, member.linkname)
    if member.isdir():
        return Entry(FOLDER, member.mode, owner=(member.uid, member.gid))
    if not member.isreg():
        return Entry(OTHER, member.mode)
    data = None
    if path in _KEPT or path.startswith(_KEPT_BELOW) or member.mode & _SET_IDS:
        if member.size > _LARGEST:
            raise EngineError(f"/{path} of the base image has {member.size} bytes", hint="--base with another image")
        stream = tar.extractfile(member)
        data = stream.read() if stream is not None else b""
    return Entry(FILE, member.mode, data=data, owner=(member.uid, member.gid))
