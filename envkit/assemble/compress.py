"""The blob of a layer while it is made: gzip, which every engine reads, or zstd (media type tar+zstd).

The bytes are the same with one core and with many: what other threads compress is cut at places that depend on the
contents alone. A gzip blob consists of many members; a zstd blob of one frame for every 4 MiB of tar, so its bytes
depend on the version of libzstd, which is part of every key in the layer cache.
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
_WAITING = 16  # pieces of at most 256 KiB that wait to be hashed
_INLINE = 16 << 10  # bytes; less is compressed before another thread could begin
_MOST = 16 << 20  # bytes that may wait to be compressed or to be written
_ZSTD_LEVEL = 3  # zstd's own default
_ZSTD_FRAME = 4 << 20  # bytes of tar


class Digest(Protocol):
    """A running SHA-256."""

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all of them."""


class HashThread:
    """A SHA-256 that a thread of its own computes, so that one large layer keeps two cores busy.

    Call `close` whatever happens.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="envkit-sha256", daemon=True)
        self._thread.start()

    def update(self, data: bytes, /) -> None:
        """Take the next bytes, which must not change any more."""
        self._waiting.put(data)

    def hexdigest(self) -> str:
        """Return the digest of all bytes; waits for the thread."""
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
    """Passes bytes on to `take` and counts them; pieces below `SMALL` wait until some are together.

    A call into a hash or a file costs as much for ten bytes as for a thousand, and a layer has a header per file.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._small = bytearray()
        self.size = 0

    def add(self, data: bytes, *, collect: int = PIECE) -> None:
        """Add the next bytes; small pieces wait until they are `collect` bytes together, 0 passes all of them on."""
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
    """The bytes of a blob in their order: compressed by `pool` where there is one, hashed and written to `sink`.

    The tar comes in pieces: each goes through `plain`, or through `contents`, or through `inflated` beside the deflate
    stream that holds it.
    """

    def __init__(self, sink: Writable, digest: Digest, pool: Executor | None) -> None:
        self._sink, self._digest, self._pool = sink, digest, pool
        self._queue: deque[tuple[Future[bytes] | bytes, int]] = deque()  # with the bytes of memory that each takes
        self._queued = 0
        self._gathered = Gathered(self._emit)
        self._write = self._gathered.add

    @property
    def size(self) -> int:
        """Bytes so far, less those that wait for a compressor."""
        return self._gathered.size

    def plain(self, data: bytes) -> None:
        """Add bytes of the tar that no compressor has a say in: headers, and what envkit itself writes."""
        raise NotImplementedError

    def contents(self, data: bytes, level: int) -> None:
        """Add a file's bytes, compressed; `level` is zlib's."""
        raise NotImplementedError

    def begin_stream(self) -> None:
        """Begin a file that is deflated already."""
        raise NotImplementedError

    def stream(self, data: bytes) -> None:
        """Add the next bytes of the deflate stream."""
        raise NotImplementedError

    def inflated(self, data: bytes) -> None:
        """Add the next bytes of the tar that the deflate stream holds."""
        raise NotImplementedError

    def end_stream(self, crc: int, size: int) -> None:
        """End the deflate stream; CRC-32 and size are those of what it holds."""
        raise NotImplementedError

    def close(self) -> str:
        """Write everything that waits, and return the SHA-256 of the blob."""
        while self._queue:
            self._next()
        self._write(b"", collect=0)
        return self._digest.hexdigest()

    def put(self, data: bytes) -> None:
        """Add the next bytes of the blob."""
        # Behind what threads still compress, these bytes wait, too: a blob has one order.
        if self._queue:
            self._append(data, len(data))
        else:
            self._write(data)

    def work(self, job: Callable[[bytes], bytes], data: bytes) -> None:
        """Add what `job` makes of `data`; what it raises comes out of a later call."""
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
    """A gzip file of many members; deflate streams are taken over as they are."""

    def plain(self, data: bytes) -> None:
        """See `Blob`."""
        self.put(gzip_member(data))

    def contents(self, data: bytes, level: int) -> None:
        """Add one member. zlib makes it: what faster compressors (ISA-L's) make can differ between processors."""
        self.work(partial(_deflated, level=level), data)

    def begin_stream(self) -> None:
        """See `Blob`."""
        self.put(GZIP_HEADER)

    stream = Blob.put

    def inflated(self, data: bytes) -> None:
        """Nothing: the deflate stream holds it."""

    def end_stream(self, crc: int, size: int) -> None:
        """See `Blob`."""
        self.put(gzip_trailer(crc, size))


class ZstdBlob(Blob):
    """Frames of the tar; what deflate streams hold is compressed again."""

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
        """Nothing: the tar inside is what counts."""

    def stream(self, data: bytes) -> None:
        """Nothing, as above."""

    def inflated(self, data: bytes) -> None:
        """See `Blob`."""
        self.plain(data)

    def end_stream(self, crc: int, size: int) -> None:
        """Nothing, as above."""

    def close(self) -> str:
        """See `Blob`."""
        if self._frame:
            self.work(_zstandard, bytes(self._frame))
        return super().close()


def blob(compression: str) -> type[Blob]:
    """Return what writes blobs of this compression."""
    return GzipBlob if compression == GZIP else ZstdBlob


def recipe(compression: str) -> str | None:
    """Return what has a say in the bytes beside the contents; None for gzip, whose keys name it themselves."""
    if compression == GZIP:
        return None
    from envkit.image.zstd import VERSION  # noqa: PLC0415 - a library for these layers alone

    return f"{compression} {VERSION}"


def _deflated(data: bytes, level: int) -> bytes:
    """Compress with zlib into one gzip member."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return b"".join((GZIP_HEADER, packer.compress(data), packer.flush(), gzip_trailer(crc32(data), len(data))))


def _zstandard(data: bytes) -> bytes:
    from envkit.image import zstd  # noqa: PLC0415 - as above

    return zstd.compress(data, _ZSTD_LEVEL)


def _is_ready(item: Future[bytes] | bytes) -> bool:
    return isinstance(item, bytes) or item.done()
