"""A layer written from front to back: a deterministic tar inside a gzip file of many members.

Entries come in the order of `order`: every folder before what it holds, and that before all else. Nothing but paths,
contents, the executable bit and `mtime` reaches the layer: owner and group are 0 without names, modes are 0755, 0644
and (links) 0777.
"""

from __future__ import annotations

import functools
import hashlib
import os
from typing import IO, TYPE_CHECKING, Protocol, Self

from envkit.assemble import members, packing
from envkit.assemble.lanes import Digest, Lane
from envkit.assemble.model import Slice
from envkit.ground.errors import IntegrityError
from envkit.image import tar
from envkit.image.deflate import PIECE, DamagedError, Inflater, check_crc, crc32
from envkit.image.spec import MTIME, LayerDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from types import TracebackType

_STORED_READ = 4 * members.STORED_MAX
_SMALL = 16 << 10


class Sink(Protocol):
    """Where the blob goes."""

    def write(self, data: bytes, /) -> object:
        """Take all of `data`."""


class LayerWriter:
    """Writes one layer to `sink`; use it in a `with` statement and end with `close`.

    `on_bytes` hears how many bytes of tar were written since the last call; what it raises ends the writing.
    `threaded` computes both digests on threads of their own, `pool` compresses the contents of files.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        mtime: int = MTIME,
        threaded: bool = False,
        on_bytes: Callable[[int], None] | None = None,
        pool: Executor | None = None,
    ) -> None:
        self._sink = sink
        self._mtime = mtime
        self._on_bytes = on_bytes
        self._lanes = [Lane(), Lane()] if threaded else []
        digests: list[Digest] = [*self._lanes] if threaded else [hashlib.sha256(), hashlib.sha256()]
        self._blob, self._tar = digests
        self._blob_waiting, self._tar_waiting = bytearray(), bytearray()
        self._queue = packing.Queue(self._take, pool)
        self._size = self._tar_size = 0
        self._padding = b""
        self._last = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self._lanes:
            lane.close()

    def add_dir(self, path: str, *, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        """A folder; `owner` is user and group."""
        self._start(path, tar.header(path, kind=tar.FOLDER, mode=mode, mtime=self._mtime, owner=owner))

    def add_symlink(self, path: str, target: str) -> None:
        """A symbolic link; `target` is written as it is."""
        self._start(path, tar.header(path, kind=tar.SYMLINK, mode=0o777, mtime=self._mtime, target=target))

    def add_bytes(self, path: str, data: bytes, *, executable: bool = False, owner: tuple[int, int] = (0, 0)) -> None:
        """A file, stored without compression: the bytes are then the same with every compressor."""
        self._start(path, self._file_header(path, len(data), executable=executable, owner=owner))
        if data:
            self._to_tar(data)
            self._to_blob(members.member(data))
        self._padding = tar.padding(len(data))

    def add_file(self, path: str, stream: IO[bytes], *, size: int, executable: bool = False, level: int = 6) -> None:
        """A file read from `stream` and compressed by zlib.

        Raises:
            IntegrityError: the stream does not hold `size` bytes.
        """
        self._start(path, self._file_header(path, size, executable=executable))
        done = 0
        for data in packing.chunks(stream):
            done += len(data)
            self._to_tar(data)
            self._pack(data, level)
        if done != size:
            raise IntegrityError(f"{path} has {done} bytes, not {size}", hint="start again; the file was changed")
        self._padding = tar.padding(size)

    def add_parts(self, path: str, parts: tuple[bytes | Slice, ...], *, size: int, executable: bool = False) -> None:
        """A file made of parts that follow one another; `size` is their sum in bytes.

        Deflated data of a zip file is taken over as it is, while its length and its CRC-32 are checked.

        Raises:
            IntegrityError: the data is not what the zip file promises.
        """
        self._start(path, self._file_header(path, size, executable=executable))
        for part in parts:
            if isinstance(part, Slice):
                self._copy(part)
            elif part:
                self._to_tar(part)
                self._to_blob(members.member(part))
        self._padding = tar.padding(size)

    def close(self) -> LayerDigest:
        """End the archive and give its digests. The sink stays open."""
        ending = self._padding + tar.end(self._tar_size + len(self._padding))
        self._to_tar(ending)
        self._to_blob(members.member(ending))
        self._flush_tar()
        self._end()
        self._queue.finish()
        self._flush_blob()
        return LayerDigest(
            digest=self._blob.hexdigest(), diff_id=self._tar.hexdigest(), size=self._size, tar_size=self._tar_size
        )

    def _file_header(self, path: str, size: int, *, executable: bool, owner: tuple[int, int] = (0, 0)) -> bytes:
        mode = 0o755 if executable else 0o644
        return tar.header(path, kind=tar.FILE, mode=mode, mtime=self._mtime, size=size, owner=owner)

    def _start(self, path: str, header: bytes) -> None:
        """Begin an entry: the padding of the one before and the header of this one, in one member."""
        place = order(path)
        if place <= self._last:
            raise ValueError(f"{path!r} does not sort after what was written before")
        self._last = place
        block = self._padding + header
        self._padding = b""
        self._to_tar(block)
        self._to_blob(members.member(block))

    def _copy(self, part: Slice) -> None:
        try:
            if part.deflated:
                self._copy_deflated(part)
            elif part.size or part.crc:
                self._copy_stored(part)
        except DamagedError as error:
            raise IntegrityError(
                f"{part.origin} is damaged: {error}", hint="delete the file and fetch it again from its index"
            ) from error

    def _copy_deflated(self, part: Slice) -> None:
        inflater = Inflater(part.size)
        self._to_blob(members.HEADER)
        for data in read(part, PIECE):
            self._to_blob(data)
            for piece in inflater.feed(data):
                self._to_tar(piece)
        inflater.finish(part.crc)
        self._to_blob(members.trailer(part.crc, part.size))

    def _copy_stored(self, part: Slice) -> None:
        self._to_blob(members.HEADER)
        crc = 0
        left = part.size
        for data in read(part, _STORED_READ):
            crc = crc32(data, crc)
            self._to_tar(data)
            for at in range(0, len(data), members.STORED_MAX):
                block = data[at : at + members.STORED_MAX]
                left -= len(block)
                self._to_blob(members.stored(len(block), final=not left) + block)
        check_crc(crc, part.crc)
        self._to_blob(members.trailer(crc, part.size))

    def _to_tar(self, data: bytes) -> None:
        self._tar_size += len(data)
        if len(data) < _SMALL:
            self._tar_waiting += data
            if len(self._tar_waiting) < PIECE:
                return
            data = b""
        self._flush_tar()
        if data:
            self._next(data)

    def _flush_tar(self) -> None:
        if self._tar_waiting:
            self._next(bytes(self._tar_waiting))
            self._tar_waiting.clear()

    def _next(self, data: bytes) -> None:
        """The next bytes of the tar."""
        self._tar.update(data)
        if self._on_bytes is not None:
            self._on_bytes(len(data))

    def _pack(self, data: bytes, level: int) -> None:
        """Compress contents into the blob."""
        self._queue.work(functools.partial(packing.member, level=level), data)

    def _end(self) -> None:
        """Nothing follows the tar's last bytes."""

    def _to_blob(self, data: bytes) -> None:
        if self._queue:
            self._queue.put(data)
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """The next bytes of the blob."""
        self._size += len(data)
        if len(data) < _SMALL:
            self._blob_waiting += data
            if len(self._blob_waiting) < PIECE:
                return
            data = b""
        self._flush_blob()
        if data:
            self._blob.update(data)
            self._sink.write(data)

    def _flush_blob(self) -> None:
        if self._blob_waiting:
            data = bytes(self._blob_waiting)
            self._blob_waiting.clear()
            self._blob.update(data)
            self._sink.write(data)


def order(path: str) -> bytes:
    """The sort key of a layer's paths: by their bytes, a slash before all else."""
    return path.encode().replace(b"/", b"\0")


def read(part: Slice, piece: int) -> Iterator[bytes]:
    """The packed bytes of a slice, in pieces of exactly `piece` but for the last.

    Raises:
        DamagedError: the file ends before.
    """
    for at in range(part.offset, part.offset + part.packed, piece):
        wanted = min(piece, part.offset + part.packed - at)
        data = os.pread(part.descriptor, wanted, at)
        while len(data) < wanted:
            more = os.pread(part.descriptor, wanted - len(data), at + len(data))
            if not more:
                raise DamagedError("the file was cut while it was read")
            data += more
        yield data
