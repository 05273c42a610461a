"""A root file system's tar, written anew as one deterministic layer.

Owners, groups and permission bits are kept, but for set-user-ID and set-group-ID, which no image of envkit has.
Device nodes are left out: every runtime brings its own, and normal users cannot unpack them.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from typing import IO, TYPE_CHECKING

from envkit.assemble.members import HEADER, trailer
from envkit.ground import imagepaths
from envkit.ground.errors import IntegrityError
from envkit.image.spec import LayerDigest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envkit.assemble.layer import Sink

_PIECE = 1 << 20
LEVEL = 4  # of zlib: 6 takes nearly twice the time for 3 % fewer bytes
_MEMBER_MODE = 0o1777
_LINK_MODE = 0o777


def write_root(tar: Path, sink: Sink, *, mtime: int) -> LayerDigest:
    """Write the layer to `sink`; equal contents give equal bytes, whatever the order and the times in `tar`.

    Raises:
        IntegrityError: a path leads out of the tree, a name stands there twice, or a hard link to nothing.
        OSError: the tar cannot be read or the sink not be written.
    """
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    blob, inner = hashlib.sha256(HEADER), hashlib.sha256()
    size, inner_size, crc = len(HEADER), 0, 0
    sink.write(HEADER)
    for piece in _archive(tar, mtime):
        inner.update(piece)
        inner_size += len(piece)
        crc = zlib.crc32(piece, crc)
        packed = packer.compress(piece)
        blob.update(packed)
        size += len(packed)
        sink.write(packed)
    ending = packer.flush() + trailer(crc, inner_size)
    blob.update(ending)
    sink.write(ending)
    return LayerDigest(digest=blob.hexdigest(), diff_id=inner.hexdigest(), size=size + len(ending), tar_size=inner_size)


def _archive(path: Path, mtime: int) -> Iterator[bytes]:
    written = 0
    try:
        with tarfile.open(path, "r:") as source:
            for old, name, link in _sorted(source, path):
                head = _header(old, name, link, mtime)
                written += len(head)
                yield head
                if not old.isreg() or link is not None:
                    continue
                written += old.size + -old.size % tarfile.BLOCKSIZE
                yield from _contents(source, old)
                yield bytes(-old.size % tarfile.BLOCKSIZE)
    except tarfile.TarError as error:
        raise IntegrityError(f"{path} is no tar that can be read: {error}", hint="--no-cache makes it anew") from error
    ending = 2 * tarfile.BLOCKSIZE
    yield bytes(ending + -(written + ending) % tarfile.RECORDSIZE)


def _sorted(source: tarfile.TarFile, path: Path) -> list[tuple[tarfile.TarInfo, str, str | None]]:
    """What the layer holds, sorted by path: the entry that has the contents, the path, and a hard link's target.

    Of several names of one file, the first in this order has the contents, whichever had them in the tar.
    """
    found: dict[str, tarfile.TarInfo] = {}
    for member in source.getmembers():
        name = _plain(member.name, path)
        if not name or member.ischr() or member.isblk() or member.isfifo():
            continue
        if name in found and not (member.isdir() and found[name].isdir()):
            raise IntegrityError(f"{path}: {name!r} is in it twice", hint="--no-cache makes it anew")
        found[name] = member
    first: dict[str, str] = {}
    rows: list[tuple[tarfile.TarInfo, str, str | None]] = []
    for name in sorted(found, key=str.encode):
        member = found[name]
        if not (member.isreg() or member.islnk()):
            rows.append((member, name, None))
            continue
        owner = _owner(found, name, path)
        target = first.setdefault(owner, name)
        rows.append((found[owner], name, None if target == name else target))
    return rows


def _owner(found: dict[str, tarfile.TarInfo], name: str, path: Path) -> str:
    """The path whose entry has the contents of a file."""
    seen = set()
    while found[name].islnk():
        seen.add(name)
        name = _plain(found[name].linkname, path)
        if name in seen or name not in found or not (found[name].isreg() or found[name].islnk()):
            raise IntegrityError(
                f"{path}: a hard link leads to {name!r}, which is no file", hint="--no-cache makes it anew"
            )
    return name


def _header(old: tarfile.TarInfo, name: str, link: str | None, mtime: int) -> bytes:
    new = tarfile.TarInfo(name)
    new.mtime, new.uid, new.gid = mtime, old.uid, old.gid
    if link is not None:
        new.type, new.linkname = tarfile.LNKTYPE, link
    elif old.issym():
        new.type, new.linkname = tarfile.SYMTYPE, old.linkname
    elif old.isdir():
        new.type = tarfile.DIRTYPE
    else:
        new.size = old.size
    new.mode = _LINK_MODE if old.issym() else old.mode & _MEMBER_MODE
    return new.tobuf(format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape")


def _contents(source: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    stream: IO[bytes] | None = source.extractfile(member)
    assert stream is not None
    left = member.size
    while left and (piece := stream.read(min(_PIECE, left))):
        left -= len(piece)
        yield piece
    if left:
        raise IntegrityError(f"{member.name!r} is cut short", hint="--no-cache makes it anew")


def _plain(name: str, path: Path) -> str:
    """A path relative to the root; empty for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise IntegrityError(f"{path}: {name!r} leads out of the tree", hint="--no-cache makes it anew")
    if imagepaths.is_reserved(name):
        raise IntegrityError(
            f"{path}: {name!r:.200} has {imagepaths.RESERVED}",
            hint="--base IMAGE, or leave the Debian package that brings it out",
        )
    return "/".join(parts)
