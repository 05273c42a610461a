"""Build a base of exactly a lock's Debian packages with mmdebstrap, as one layer.

The layer is cached under a key computed from the lock, so mmdebstrap runs once per list of packages, whichever engines
use it. The layer is reproducible. It keeps owners, groups and permission bits, except set-user-ID and set-group-ID,
which no image of envkit has. Device nodes are omitted: every runtime provides its own, and normal users cannot create
them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
import threading
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.engines import bootstrap
from envkit.engines.journal import Journal
from envkit.ground import imagepaths
from envkit.ground.errors import IntegrityError
from envkit.ground.process import StoppedError
from envkit.image import spec
from envkit.image.deflate import GZIP_HEADER, gzip_trailer
from envkit.image.spec import MTIME, LayerDigest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envkit.engines.layer_cache import LayerCache
    from envkit.ground.progress import Reporter
    from envkit.image.deflate import Writable
    from envkit.lock.model import LockedBase

_PIECE = 1 << 20
_LEVEL = 4  # of zlib: 6 takes nearly twice the time for 3 % fewer bytes
_MEMBER_MODE = 0o1777  # permissions and the sticky bit
_LINK_MODE = 0o777
_REBUILD = "--no-cache rebuilds it"
# Part of the key. Increase it when the same packages give other bytes.
_WRITER = 2


def from_packages(
    base: LockedBase,
    cache: LayerCache,
    options: bootstrap.RootOptions,
    reporter: Reporter,
    *,
    state: Path | None,
    no_cache: bool = False,
    engine: str = "embedded",
) -> spec.Base:
    """Return a base of one layer with a lock's Debian packages.

    Safe on any thread, if no other thread writes to `options.log` and `reporter` at the same time.

    Args:
        base: the lock's base, of kind 'bootstrap'.
        cache: the cache for the layer.
        options: mirror, log and limits.
        reporter: receives the step.
        state: folder for the journal.
        no_cache: build the layer even if it is cached.
        engine: the engine in the journal; its next run kills processes that a killed run left.

    Raises:
        As `envkit.engines.bootstrap.make`.
        StoppedError: `stop` was set.
    """
    key = layer_key(base)

    def write(sink: IO[bytes]) -> LayerDigest:
        with Journal(state, engine) as notes, tempfile.TemporaryDirectory(
            prefix="envkit-", ignore_cleanup_errors=True
        ) as folder:  # fmt: skip
            notes.folder(Path(folder))
            Path(folder).chmod(0o755)  # apt's own user has to be able to enter it
            reporter.step(f"build the Debian base ({len(base.packages)} packages)")
            return _build(base, Path(folder), sink, options, notes)

    def check() -> None:
        if options.stop is not None and options.stop.is_set():
            raise StoppedError

    with cache.flights.all([key], check):
        cached = (None if no_cache else cache.get(key)) or cache.make(key, write)
    layer = spec.layer(cached.layer, cached.path, f"envkit: {base.reference}")
    return spec.Base(name=base.reference, layers=(layer,), config={"Env": [f"PATH={bootstrap.PATH}"]})


def layer_key(base: LockedBase) -> str:
    """Return the layer cache's key for these packages."""
    rows = [(package.name, package.version, package.arch, package.sha256) for package in base.packages]
    tree = {
        "recipe": bootstrap.RECIPE,
        "writer": _WRITER,
        "level": _LEVEL,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,  # another version can give other bytes
        "mtime": MTIME,
        "suite": base.suite,
        "packages": rows,
    }
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _build(
    base: LockedBase, folder: Path, sink: IO[bytes], options: bootstrap.RootOptions, notes: Journal
) -> LayerDigest:
    """Build the root and write its layer, starting while mmdebstrap still removes its own copy."""
    assert base.suite is not None
    cancelled = threading.Event()
    packing: list[Future[LayerDigest]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="envkit-root") as thread:
        try:
            bootstrap.make(
                base.suite,
                base.packages,
                folder,
                options,
                notes,
                on_tar=lambda tar: packing.append(
                    thread.submit(write_root, tar, _Stoppable(sink, (cancelled, options.stop)), mtime=MTIME)
                ),
            )
            return packing[0].result()  # `make` has called `on_tar` once
        except BaseException:
            # The executor waits for its thread, which ends early only with this event.
            cancelled.set()
            raise


class _Stoppable:
    """A sink that raises StoppedError once one of the events is set."""

    def __init__(self, sink: IO[bytes], events: tuple[threading.Event | None, ...]) -> None:
        self._sink, self._events = sink, events

    def write(self, data: bytes, /) -> int:
        """Take all of `data`."""
        if any(event is not None and event.is_set() for event in self._events):
            raise StoppedError
        return self._sink.write(data)


def write_root(tar: Path, sink: Writable, *, mtime: int) -> LayerDigest:
    """Write the layer to `sink`. Equal contents give equal bytes, whatever the order and times in `tar`.

    Raises:
        IntegrityError: a path leads out of the tree, occurs twice, or is a hard link to a missing file.
        OSError: the tar cannot be read, or the sink cannot be written.
    """
    # -15: a raw deflate stream; the gzip header and trailer are written here.
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    blob, inner = hashlib.sha256(GZIP_HEADER), hashlib.sha256()
    size, inner_size, crc = len(GZIP_HEADER), 0, 0
    sink.write(GZIP_HEADER)
    for piece in _archive(tar, mtime):
        inner.update(piece)
        inner_size += len(piece)
        crc = zlib.crc32(piece, crc)
        packed = packer.compress(piece)
        blob.update(packed)
        size += len(packed)
        sink.write(packed)
    ending = packer.flush() + gzip_trailer(crc, inner_size)
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
        raise IntegrityError(f"{path} cannot be read as a tar: {error}", hint=_REBUILD) from error
    ending = 2 * tarfile.BLOCKSIZE
    yield bytes(ending + -(written + ending) % tarfile.RECORDSIZE)


def _sorted(source: tarfile.TarFile, path: Path) -> list[tuple[tarfile.TarInfo, str, str | None]]:
    """Return the layer's entries sorted by path: the member with the contents, the path, and a hard link's target.

    If a file has several names, the first in this order gets the contents, whichever has them in the tar.
    """
    members: dict[str, tarfile.TarInfo] = {}
    for member in source.getmembers():
        name = _plain(member.name, path)
        if not name or member.ischr() or member.isblk() or member.isfifo():
            continue
        # A folder that is listed twice is harmless: the later entry counts.
        if name in members and not (member.isdir() and members[name].isdir()):
            raise IntegrityError(f"{path}: {name!r} is in it twice", hint=_REBUILD)
        members[name] = member
    first: dict[str, str] = {}
    rows: list[tuple[tarfile.TarInfo, str, str | None]] = []
    for name in sorted(members, key=os.fsencode):
        member = members[name]
        if not (member.isreg() or member.islnk()):
            rows.append((member, name, None))
            continue
        owner = _owner(members, name, path)
        target = first.setdefault(owner, name)
        rows.append((members[owner], name, None if target == name else target))
    return rows


def _owner(members: dict[str, tarfile.TarInfo], name: str, path: Path) -> str:
    """Return the path whose entry has the contents of a file."""
    seen = set()
    while members[name].islnk():
        seen.add(name)
        name = _plain(members[name].linkname, path)
        if name in seen or name not in members or not (members[name].isreg() or members[name].islnk()):
            raise IntegrityError(f"{path}: a hard link leads to {name!r}, which is not a file", hint=_REBUILD)
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
        raise IntegrityError(f"{member.name!r} is truncated", hint=_REBUILD)


def _plain(name: str, path: Path) -> str:
    """Return a path relative to the root; empty for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise IntegrityError(f"{path}: {name!r} leads out of the tree", hint=_REBUILD)
    if imagepaths.is_reserved(name):
        raise IntegrityError(
            f"{path}: {name!r:.200} has {imagepaths.RESERVED}",
            hint="use --base IMAGE, or remove the Debian package that contains it",
        )
    return "/".join(parts)
