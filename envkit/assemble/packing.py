"""Contents compressed on other threads, in chunks whose ends depend on nothing but the contents.

Each chunk becomes a gzip member of its own, so the bytes are the same with one core and with many. zlib does it: the
output of faster compressors (ISA-L's) can differ from processor to processor.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from envkit.assemble import members
from envkit.image.deflate import crc32

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

CHUNK = 1 << 20  # bytes; as one stream, a library of torch becomes 0.5 % smaller
_INLINE = 16 << 10  # bytes; less is compressed before another thread could begin
_MOST = 16 << 20  # bytes that may wait to be compressed or to be written


def member(data: bytes, level: int) -> bytes:
    """`data` compressed by zlib, as one gzip member."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return b"".join((members.HEADER, packer.compress(data), packer.flush(), members.trailer(crc32(data), len(data))))


def chunks(stream: IO[bytes], size: int = CHUNK) -> Iterator[bytes]:
    """What a stream holds, in pieces of exactly `size` bytes but for the last, however it gives them."""
    while data := stream.read(size):
        while len(data) < size and (more := stream.read(size - len(data))):
            data += more
        yield data


class Queue:
    """Hands on bytes in the order in which they came, although other threads make some of them.

    Args:
        out: takes the bytes.
        pool: does the work; None = this thread.
    """

    __slots__ = ("_out", "_pool", "_waiting", "_weight")

    def __init__(self, out: Callable[[bytes], None], pool: Executor | None) -> None:
        self._out, self._pool = out, pool
        self._waiting: deque[tuple[Future[bytes] | bytes, int]] = deque()
        self._weight = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting)

    def put(self, data: bytes) -> None:
        """Bytes as they are."""
        if self._waiting:
            self._append(data, len(data))
        else:
            self._out(data)

    def work(self, job: Callable[[bytes], bytes], data: bytes) -> None:
        """What `job` makes of `data`; what it raises comes out of a later call."""
        if self._pool is None or len(data) < _INLINE:
            self.put(job(data))
        else:
            self._append(self._pool.submit(job, data), len(data))

    def finish(self) -> None:
        """Hand on everything."""
        while self._waiting:
            self._next()

    def _append(self, item: Future[bytes] | bytes, weight: int) -> None:
        self._waiting.append((item, weight))
        self._weight += weight
        while self._waiting and (self._weight > _MOST or _is_ready(self._waiting[0][0])):
            self._next()

    def _next(self) -> None:
        item, weight = self._waiting.popleft()
        self._weight -= weight
        self._out(item if isinstance(item, bytes) else item.result())


def _is_ready(item: Future[bytes] | bytes) -> bool:
    return isinstance(item, bytes) or item.done()
