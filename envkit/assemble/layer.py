"""Write a layer sequentially: a deterministic tar, and the blob that contains it.

Entries are sorted by `order`, so every folder comes directly before its contents. Only paths, contents, the executable
bit and `mtime` reach the layer: owner and group are 0 without names, modes are 0755, 0644 and (links) 0777.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from envkit.assemble.compress import GZIP, Digest, Gathered, HashThread, blob
from envkit.ground.errors import IntegrityError
from envkit.image import tar
from envkit.image.deflate import PIECE, STORED_MAX, DamagedError, Inflater, check_crc, crc32, stored_header
from envkit.image.spec import MTIME, LayerDigest
from envkit.image.zip_entries import FETCH_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from types import TracebackType

    from envkit.image.deflate import Writable

# Part of every cache key. Increase it when the same input gives other bytes.
WRITER_VERSION = 2
_CHUNK = 1 << 20  # bytes of a file per gzip member; as a single stream, torch's libraries are 0.5 % smaller
_STORED_READ = 4 * STORED_MAX  # a multiple of it, so that all stored blocks of an entry except the last are full


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The data of an entry in an open zip file, and its size and checksum as stated there."""

    descriptor: int
    origin: str  # the file and the entry, for messages
    offset: int
    packed: int  # bytes in the zip
    size: int  # bytes when inflated
    crc: int  # CRC-32 of the inflated bytes
    deflated: bool  # False: stored without compression
    recorded: tuple[str, bytes] | None = None  # algorithm and digest of the inflated bytes, if the package lists them

    def digest(self) -> Digest | None:
        """Return a new digest for the inflated bytes; None if there is nothing to compare it with."""
        return None if self.recorded is None else hashlib.new(self.recorded[0])

    def check(self, digest: Digest | None) -> None:
        """Compare the digest of the inflated bytes with that of the package.

        Raises:
            DamagedError: they differ.
        """
        if digest is not None and self.recorded is not None and digest.hexdigest() != self.recorded[1].hex():
            name, wanted = self.recorded
            raise DamagedError(f"its {name} is {digest.hexdigest()}, not {wanted.hex()} as the package lists it")


@dataclass(frozen=True, slots=True)
class Generated:
    """Bytes that zlib compresses. Short texts are `bytes` instead, which are stored and so depend on no library."""

    data: bytes
    level: int  # zlib's


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file of a layer, made of consecutive parts."""

    path: str  # relative to the image's root
    size: int  # bytes
    executable: bool
    parts: tuple[bytes | Slice | Generated, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The files and folders of one package in the image."""

    name: str
    version: str
    files: tuple[File, ...]
    folders: tuple[str, ...]  # listed by the package itself, including empty ones


class LayerWriter:
    """Writes one layer to `sink`. Use it in a `with` statement, and call `close` at the end.

    `on_bytes` gets the number of bytes of the tar written since the last call; its exception ends the writing.
    `threaded` computes both digests in separate threads; `pool` compresses the contents of files; `tee` gets the bytes
    of the tar, too.
    """

    def __init__(
        self,
        sink: Writable,
        *,
        mtime: int = MTIME,
        compression: str = GZIP,
        threaded: bool = False,
        on_bytes: Callable[[int], None] | None = None,
        pool: Executor | None = None,
        tee: Callable[[bytes], object] | None = None,
    ) -> None:
        self._mtime = mtime
        self._tee = tee
        self._on_bytes = on_bytes
        self._threads = [HashThread(), HashThread()] if threaded else []
        digests: list[Digest] = [*self._threads] if threaded else [hashlib.sha256(), hashlib.sha256()]
        self._blob, self._tar = blob(compression)(sink, digests[0], pool), digests[1]
        self._gathered = Gathered(self._hash_piece)
        self._hash = self._gathered.add
        self._padding = b""
        self._last = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.close()

    def add_dir(self, path: str, *, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        """Add a folder; `owner` is the user ID and group ID."""
        self._start(path, tar.header(path, kind=tar.FOLDER, mode=mode, mtime=self._mtime, owner=owner))

    def add_symlink(self, path: str, target: str) -> None:
        """Add a symbolic link; `target` is written unchanged."""
        # Linux shows this mode for every link and does not use it (symlink(7)).
        self._start(path, tar.header(path, kind=tar.SYMLINK, mode=0o777, mtime=self._mtime, target=target))

    def add_bytes(self, path: str, data: bytes, *, executable: bool = False, owner: tuple[int, int] = (0, 0)) -> None:
        """Add a file, stored without a compressor, so that its bytes do not depend on the version of a library."""
        self._start(path, self._file_header(path, len(data), executable=executable, owner=owner))
        if data:
            self._plain(data)
        self._padding = tar.padding(len(data))

    def add_file(self, path: str, stream: IO[bytes], *, size: int, executable: bool = False, level: int = 6) -> None:
        """Add a file read from `stream` and compressed by zlib.

        Raises:
            IntegrityError: the stream does not have `size` bytes.
        """
        self._start(path, self._file_header(path, size, executable=executable))
        done = 0
        for data in chunks(stream, _CHUNK):
            done += len(data)
            self._compress(data, level)
        if done != size:
            raise IntegrityError(
                f"{path} has {done} bytes, not {size}", hint="run it again; the file was changed during the build"
            )
        self._padding = tar.padding(size)

    def add_parts(
        self, path: str, parts: tuple[bytes | Slice | Generated, ...], *, size: int, executable: bool = False
    ) -> None:
        """Add a file made of consecutive parts; `size` is their total in bytes.

        Deflated data of a zip file is copied unchanged while its length, its CRC-32 and its digest are checked.

        Raises:
            IntegrityError: the data does not match the zip file's directory or the package's own list.
        """
        self._start(path, self._file_header(path, size, executable=executable))
        for part in parts:
            if isinstance(part, Generated):
                for at in range(0, len(part.data), _CHUNK):
                    self._compress(part.data[at : at + _CHUNK], part.level)
                continue
            if not isinstance(part, Slice):
                if part:
                    self._plain(part)
                continue
            try:
                if part.deflated:
                    self._copy_deflated(part)
                # An empty entry is skipped. One with a size of 0 and a CRC-32 is damaged, which the copy detects.
                elif part.size or part.crc:
                    self._copy_stored(part)
            except DamagedError as error:
                raise IntegrityError(f"{part.origin} is damaged: {error}", hint=FETCH_AGAIN) from error
        self._padding = tar.padding(size)

    def close(self) -> LayerDigest:
        """Write the end of the archive and return the digests. The sink stays open."""
        self._plain(self._padding + tar.end(self._gathered.size + len(self._padding)))
        self._hash(b"", collect=0)  # the small pieces that still wait
        digest = self._blob.close()
        return LayerDigest(
            digest=digest, diff_id=self._tar.hexdigest(), size=self._blob.size, tar_size=self._gathered.size
        )

    def _file_header(self, path: str, size: int, *, executable: bool, owner: tuple[int, int] = (0, 0)) -> bytes:
        mode = 0o755 if executable else 0o644
        return tar.header(path, kind=tar.FILE, mode=mode, mtime=self._mtime, size=size, owner=owner)

    def _start(self, path: str, header: bytes) -> None:
        """Begin an entry: write the padding of the previous one and the header of this one as one piece."""
        sort_key = order(path)
        if sort_key <= self._last:
            raise ValueError(f"{path!r} does not sort after the previous path")
        self._last = sort_key
        self._plain(self._padding + header)
        self._padding = b""

    def _plain(self, data: bytes) -> None:
        self._hash(data)
        self._blob.plain(data)

    def _compress(self, data: bytes, level: int) -> None:
        self._hash(data)
        self._blob.contents(data, level)

    def _copy_deflated(self, part: Slice) -> None:
        inflater, blob, recorded = Inflater(part.size), self._blob, part.digest()
        blob.begin_stream()
        for data in read(part, PIECE):
            blob.stream(data)
            for piece in inflater.feed(data):
                self._hash(piece)
                blob.inflated(piece)
                if recorded is not None:
                    recorded.update(piece)
        inflater.finish(part.crc)
        part.check(recorded)
        blob.end_stream(part.crc, part.size)

    def _copy_stored(self, part: Slice) -> None:
        """Copy the uncompressed bytes of a zip file as stored blocks of a deflate stream."""
        blob, crc, left, recorded = self._blob, 0, part.size, part.digest()
        blob.begin_stream()
        for data in read(part, _STORED_READ):
            crc = crc32(data, crc)
            self._hash(data)
            blob.inflated(data)
            if recorded is not None:
                recorded.update(data)
            for at in range(0, len(data), STORED_MAX):
                block = data[at : at + STORED_MAX]
                left -= len(block)
                blob.stream(stored_header(len(block), final=not left) + block)
        check_crc(crc, part.crc)
        part.check(recorded)
        blob.end_stream(crc, part.size)

    def _hash_piece(self, piece: bytes) -> None:
        self._tar.update(piece)
        if self._tee is not None:
            self._tee(piece)
        if self._on_bytes is not None:
            self._on_bytes(len(piece))


def write_trees(trees: Sequence[Tree], writer: LayerWriter) -> None:
    """Write packages into one layer. A path of several packages belongs to the last one, as with installers.

    Raises:
        IntegrityError: a path is a file of one package and a folder of another, or data is damaged.
    """
    files = {file.path: file for tree in trees for file in tree.files}
    folders = parents((*files, *(f"{folder}/" for tree in trees for folder in tree.folders)))
    if clash := min(folders & files.keys(), default=None):
        owners = sorted(tree.name for tree in trees if any(file.path == clash for file in tree.files))
        raise IntegrityError(
            f"/{clash} is a file of {', '.join(owners)} and a folder of another package",
            hint=f"remove {owners[0]} or the other package from the environment",
        )
    for path in sorted(folders | files.keys(), key=order):
        if path in folders:
            writer.add_dir(path)
        else:
            file = files[path]
            writer.add_parts(path, file.parts, size=file.size, executable=file.executable)


def parents(paths: Iterable[str]) -> set[str]:
    """Return all parent folders of the paths; a path that ends in a slash is itself a folder."""
    folders: set[str] = set()
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    return folders


def order(path: str) -> bytes:
    """Return the sort key of a path in a layer: its bytes, with the slash sorted before any other character."""
    return path.encode().replace(b"/", b"\0")


def read(part: Slice, piece: int) -> Iterator[bytes]:
    """Yield the packed bytes of a slice in pieces of exactly `piece` bytes, except for the last.

    Raises:
        DamagedError: the file is too short.
    """
    for at in range(part.offset, part.offset + part.packed, piece):
        wanted = min(piece, part.offset + part.packed - at)
        data = os.pread(part.descriptor, wanted, at)
        # pread may return less than was asked for, on network file systems for example.
        while len(data) < wanted:
            more = os.pread(part.descriptor, wanted - len(data), at + len(data))
            if not more:
                raise DamagedError("the file was truncated while it was read")
            data += more
        yield data


def chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the contents of a stream in pieces of exactly `size` bytes, except for the last."""
    while data := stream.read(size):
        # Each piece becomes one member of the blob, so a short read would change the digest.
        while len(data) < size and (more := stream.read(size - len(data))):
            data += more
        yield data
