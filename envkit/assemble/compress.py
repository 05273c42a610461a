"""Write the blob of a layer: gzip, which every engine reads, or zstd (media type tar+zstd).

The bytes do not depend on the number of cores: the pieces that other threads compress are cut at positions that depend
only on the contents. A gzip blob consists of many members. A zstd blob has one frame for every 4 MiB of tar; its bytes
depend on the version of libzstd, which is therefore part of the layer's key in the cache.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from envkit.image.deflate import GZIP_HEADER, PIECE, crc32, gzip_member, gzip_trailer

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

    from envkit.image.deflate import Writable

GZIP, ZSTD = "gzip", "zstd"
COMPRESSIONS = (GZIP, ZSTD)
SMALL = 16 << 10  # bytes; smaller pieces are collected before they are hashed and written
_WAITING = 16  # pieces of at most 256 KiB in the queue of a hash thread
_INLINE = 16 << 10  # bytes; compressing less takes no longer than handing it to another thread
_MOST = 16 << 20  # bytes that may wait to be compressed or written
_ZSTD_LEVEL = 3  # zstd's own default
_ZSTD_FRAME = 4 << 20  # bytes of tar


class Digest(Protocol):
    """A running SHA-256."""

    def update(self, data: bytes, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""


class HashThread:
    """A SHA-256 that is computed in its own thread, so that one large layer keeps two cores busy.

    Always call `close`, after an error too: it ends the thread.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="envkit-sha256", daemon=True)
        self._thread.start()

    def update(self, data: bytes, /) -> None:
        """Add the next bytes, which must not change afterwards."""
        self._waiting.put(data)

    def hexdigest(self) -> str:
        """Wait for the thread and return the digest of all bytes."""
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (data := self._waiting.get()) is not None:
            self._digest.update(data)


class Gathered:
    """Counts bytes and passes them on to `take`, pieces below `SMALL` joined into larger ones.

    Hashing or writing ten bytes costs as much as a thousand, and a layer has a header for every file.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._small = bytearray()
        self.size = 0

    def add(self, data: bytes, *, collect: int = PIECE) -> None:
        """Add the next bytes. Small pieces wait until there are `collect` bytes of them; 0 passes on all that wait."""
        self.size += len(data)
        if len(data) < SMALL:
            self._small += data
            if len(self._small) < collect:
                return
            data = b""
        for piece in (bytes(self._small), data):
            if piece:
                self._take(piece)
        self._small.clear()


class Blob:
    """The bytes of a blob in order: compressed, in `pool` if there is one, then hashed and written to `sink`.

    Each piece of the tar is given to `plain` or `contents`, or, if it is already deflated, to `stream` in deflated and
    to `inflated` in inflated form.
    """

    def __init__(self, sink: Writable, digest: Digest, pool: Executor | None) -> None:
        self._sink, self._digest, self._pool = sink, digest, pool
        self._queue: deque[tuple[Future[bytes] | bytes, int]] = deque()  # with the memory that each takes, in bytes
        self._queued = 0
        self._gathered = Gathered(self._emit)
        self._write = self._gathered.add

    @property
    def size(self) -> int:
        """Bytes so far, without those that wait to be compressed."""
        return self._gathered.size

    def plain(self, data: bytes) -> None:
        """Add bytes of the tar that gzip blobs store without a compressor: headers, and files that envkit writes."""
        raise NotImplementedError

    def contents(self, data: bytes, level: int) -> None:
        """Add bytes of a file, to be compressed; `level` is zlib's."""
        raise NotImplementedError

    def begin_stream(self) -> None:
        """Begin a file that is already deflated."""
        raise NotImplementedError

    def stream(self, data: bytes) -> None:
        """Add the next bytes of the deflate stream."""
        raise NotImplementedError

    def inflated(self, data: bytes) -> None:
        """Add the next bytes of the tar, as inflated from the deflate stream."""
        raise NotImplementedError

    def end_stream(self, crc: int, size: int) -> None:
        """End the deflate stream; CRC-32 and size are those of its inflated contents."""
        raise NotImplementedError

    def close(self) -> str:
        """Write all bytes that wait, and return the SHA-256 of the blob."""
        while self._queue:
            self._next()
        self._write(b"", collect=0)
        return self._digest.hexdigest()

    def put(self, data: bytes) -> None:
        """Add the next bytes of the blob."""
        # A blob has one order: these bytes wait behind those that are still being compressed.
        if self._queue:
            self._append(data, len(data))
        else:
            self._write(data)

    def work(self, job: Callable[[bytes], bytes], data: bytes) -> None:
        """Add `job(data)`, computed in the pool if it is large; its error is raised by a later call."""
        if self._pool is None or len(data) < _INLINE:
            self.put(job(data))
        else:
            self._append(self._pool.submit(job, data), len(data))

    def _append(self, item: Future[bytes] | bytes, weight: int) -> None:
        self._queue.append((item, weight))
        self._queued += weight
        while self._queue and (self._queued > _MOST or _is_ready(self._queue[0][0])):
            self._next()

    def _next(self) -> None:
        item, weight = self._queue.popleft()
        self._queued -= weight
        self._write(item if isinstance(item, bytes) else item.result())

    def _emit(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._sink.write(piece)


class GzipBlob(Blob):
    """A gzip file of many members; deflate streams are copied unchanged."""

    def plain(self, data: bytes) -> None:
        """See `Blob`."""
        self.put(gzip_member(data))

    def contents(self, data: bytes, level: int) -> None:
        """Add one member, compressed by zlib: the output of faster libraries (ISA-L) can differ between processors."""
        self.work(partial(_deflated, level=level), data)

    def begin_stream(self) -> None:
        """See `Blob`."""
        self.put(GZIP_HEADER)

    stream = Blob.put

    def inflated(self, data: bytes) -> None:
        """Do nothing: the deflate stream has these bytes."""

    def end_stream(self, crc: int, size: int) -> None:
        """See `Blob`."""
        self.put(gzip_trailer(crc, size))


class ZstdBlob(Blob):
    """A zstd file of frames; the contents of deflate streams are compressed again."""

    def __init__(self, sink: Writable, digest: Digest, pool: Executor | None) -> None:
        super().__init__(sink, digest, pool)
        self._frame = bytearray()

    def plain(self, data: bytes) -> None:
        """See `Blob`."""
        self._frame += data
        while len(self._frame) >= _ZSTD_FRAME:
            self.work(_zstandard, bytes(self._frame[:_ZSTD_FRAME]))
            del self._frame[:_ZSTD_FRAME]

    def contents(self, data: bytes, level: int) -> None:
        """See `Blob`."""
        del level
        self.plain(data)

    def begin_stream(self) -> None:
        """Do nothing: the inflated bytes are compressed instead."""

    def stream(self, data: bytes) -> None:
        """Do nothing, as `begin_stream`."""

    def inflated(self, data: bytes) -> None:
        """See `Blob`."""
        self.plain(data)

    def end_stream(self, crc: int, size: int) -> None:
        """Do nothing, as `begin_stream`."""

    def close(self) -> str:
        """See `Blob`."""
        if self._frame:
            self.work(_zstandard, bytes(self._frame))
        return super().close()


def blob(compression: str) -> type[Blob]:
    """Return the class that writes blobs of this compression."""
    return GzipBlob if compression == GZIP else ZstdBlob


def recipe(compression: str) -> str | None:
    """Return the compressor and its version for cache keys of layers; None for gzip.

    Keys of gzip layers with conda packages include zlib's version. Those with wheels need none: the deflate streams are
    copied.
    """
    if compression == GZIP:
        return None
    from envkit.image.zstd import VERSION  # noqa: PLC0415 - a library that only zstd layers need

    return f"{compression} {VERSION}"


def _deflated(data: bytes, level: int) -> bytes:
    """Compress with zlib into one gzip member."""
    # -15: a raw deflate stream, because the gzip header and trailer are added here.
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return b"".join((GZIP_HEADER, packer.compress(data), packer.flush(), gzip_trailer(crc32(data), len(data))))


def _zstandard(data: bytes) -> bytes:
    from envkit.image import zstd  # noqa: PLC0415 - a library that only zstd layers need

    return zstd.compress(data, _ZSTD_LEVEL)


def _is_ready(item: Future[bytes] | bytes) -> bool:
    return isinstance(item, bytes) or item.done()
