"""Raw deflate streams, inflated in pieces of bounded size and checked against what was promised."""

from __future__ import annotations

import io
import zlib
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from isal import igzip, igzip_lib, isal_zlib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECE = 256 << 10  # bytes; what one call may yield, so a bomb costs time but never memory

crc32 = isal_zlib.crc32
_IsalError = cast("type[Exception]", igzip_lib.IsalError)


# What reading from `open_gzip` raises where the file is damaged.
GZIP_FAULTS: tuple[type[Exception], ...] = (EOFError, OSError, _IsalError, zlib.error)


def most_inflated(size: int) -> int:
    """Return how many bytes a package or layer of `size` bytes may inflate to: 100 times as many, and at least 1 GiB.

    Deflate reaches 1032 times and zstd more; libraries with CUDA reach 5. What exceeds it only fills a disk.
    """
    return max(1 << 30, 100 * size)


class Readable(Protocol):
    """What bytes come from."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""


def open_gzip(source: Path | Readable) -> IO[bytes]:
    """What a gzip file of any number of members holds, as a stream to read."""
    if hasattr(source, "read"):
        return cast("IO[bytes]", igzip.IGzipFile(fileobj=_Raw(source), mode="rb"))  # type: ignore[no-untyped-call]
    return cast("IO[bytes]", igzip.IGzipFile(source, "rb"))  # type: ignore[no-untyped-call]


class _Raw(io.RawIOBase):
    """Bytes that are read forwards, as the library wants them."""

    def __init__(self, source: Readable) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        piece = self._source.read(len(view))
        view[: len(piece)] = piece
        return len(piece)


class DamagedError(ValueError):
    """The stream is not deflate, or not as long as promised, or its CRC-32 differs."""


class Inflater:
    """One stream: `feed` it in pieces, then `finish`."""

    __slots__ = ("_crc", "_engine", "_left")

    def __init__(self, size: int) -> None:
        """`size` is the number of bytes that the stream promises to inflate to."""
        self._engine = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
        self._left = size
        self._crc = 0

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """What `data` inflates to.

        Raises:
            DamagedError: the stream is broken, goes on after its end, or holds more than promised.
        """
        if self._over():
            if len(data):
                raise DamagedError("it goes on after its end")
            return
        while True:
            try:
                # One byte more than promised shows a lie; a buffer of this size is what small entries cost most.
                piece = self._engine.decompress(data, min(PIECE, self._left + 1))
            except _IsalError as error:
                raise DamagedError(f"it is not deflate data ({error})") from error
            self._left -= len(piece)
            if self._left < 0:
                raise DamagedError("it holds more than it says")
            self._crc = crc32(piece, self._crc)
            if piece:
                yield piece
            if self._over():
                if self._engine.unused_data:
                    raise DamagedError("it goes on after its end")
                return
            if self._engine.needs_input:
                return
            data = b""

    def _over(self) -> bool:
        return bool(self._engine.eof)

    def finish(self, crc: int) -> None:
        """The stream is over.

        Raises:
            DamagedError: it had not ended, or was shorter than promised, or its CRC-32 is not `crc`.
        """
        if not self._over() or self._left:
            raise DamagedError("it is cut short")
        check_crc(self._crc, crc)


def check_crc(seen: int, promised: int) -> None:
    """Compare two CRC-32s.

    Raises:
        DamagedError: they differ.
    """
    if seen != promised:
        raise DamagedError(f"its CRC-32 is {seen:08x}, not {promised:08x}")
