"""Deflate and gzip: inflate streams in pieces of bounded size, and write gzip members without a compressor.

A gzip file may have many members (RFC 1952, 2.2). In assembled layers the already deflated entries of zip files become
members unchanged, between small members with tar headers and files that envkit writes. The small members store text
uncompressed and long runs of zero bytes as matches, so their bytes do not depend on the version of a library.
"""

from __future__ import annotations

import functools
import io
import re
import struct
import zlib
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from isal import igzip, igzip_lib, isal_zlib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECE = 256 << 10  # maximum bytes of a yielded piece, so that a decompression bomb cannot fill the memory

crc32 = isal_zlib.crc32
# Deflate, no name, no time, no flags, unknown system (RFC 1952, 2.3).
GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
STORED_MAX = 0xFFFF
# A match and the header of the next stored block need about nine bytes, so shorter runs save little or nothing.
_ZEROS = re.compile(rb"\0{16,}")
# Length codes of RFC 1951, 3.2.5: (shortest length, code, extra bits), longest first.
_LENGTHS = (
    (258, 285, 0), (227, 284, 5), (195, 283, 5), (163, 282, 5), (131, 281, 5), (115, 280, 4), (99, 279, 4),
    (83, 278, 4), (67, 277, 4), (59, 276, 3), (51, 275, 3), (43, 274, 3), (35, 273, 3), (31, 272, 2), (27, 271, 2),
    (23, 270, 2), (19, 269, 2), (17, 268, 1), (15, 267, 1), (13, 266, 1), (11, 265, 1), (10, 264, 0), (9, 263, 0),
    (8, 262, 0), (7, 261, 0), (6, 260, 0), (5, 259, 0), (4, 258, 0), (3, 257, 0),
)  # fmt: skip
_SHORTEST_MATCH = 3  # RFC 1951
_IsalError = cast("type[Exception]", igzip_lib.IsalError)


# The exceptions that reading from `open_gzip` raises if the file is damaged.
GZIP_FAULTS: tuple[type[Exception], ...] = (EOFError, OSError, _IsalError, zlib.error)


def most_inflated(size: int) -> int:
    """Return the maximum unpacked size of a package or layer of `size` bytes: 100 times as much, and at least 1 GiB.

    CUDA libraries reach a ratio of 5. Deflate allows 1032 and zstd more, which only decompression bombs use.
    """
    return max(1 << 30, 100 * size)


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""


class Writable(Protocol):
    """A destination of bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of `data`."""


def open_gzip(source: Path | Readable) -> IO[bytes]:
    """Return the contents of a gzip file with any number of members as a stream."""
    if hasattr(source, "read"):
        return cast("IO[bytes]", igzip.IGzipFile(fileobj=_Raw(source), mode="rb"))  # type: ignore[no-untyped-call]
    return cast("IO[bytes]", igzip.IGzipFile(source, "rb"))  # type: ignore[no-untyped-call]


class _Raw(io.RawIOBase):
    """Adapts a `Readable` to the interface that the library requires."""

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
    """The stream is not deflate data, or its size or CRC-32 is wrong."""


class Inflater:
    """Inflates one stream: call `feed` for each piece, then `finish`."""

    __slots__ = ("_crc", "_engine", "_left")

    def __init__(self, size: int) -> None:
        """`size` is the expected number of inflated bytes."""
        # DECOMP_DEFLATE: without a zlib header, as in zip files.
        self._engine = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
        self._left = size
        self._crc = 0

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield the inflated bytes of `data`.

        Raises:
            DamagedError: the stream is invalid, continues after its end, or is longer than expected.
        """
        if self._at_end():
            if len(data):
                raise DamagedError("it goes on after its end")
            return
        while True:
            try:
                # One byte more than expected detects streams that are too long. Larger buffers would dominate the cost
                # of small entries.
                piece = self._engine.decompress(data, min(PIECE, self._left + 1))
            except _IsalError as error:
                raise DamagedError(f"it is not deflate data ({error})") from error
            self._left -= len(piece)
            if self._left < 0:
                raise DamagedError("it is longer than stated")
            self._crc = crc32(piece, self._crc)
            if piece:
                yield piece
            if self._at_end():
                if self._engine.unused_data:
                    raise DamagedError("it goes on after its end")
                return
            if self._engine.needs_input:
                return
            data = b""  # the engine keeps input that it has not inflated yet

    def _at_end(self) -> bool:
        return bool(self._engine.eof)

    def finish(self, crc: int) -> None:
        """Check the end of the stream.

        Raises:
            DamagedError: it has not ended, is shorter than expected, or its CRC-32 is not `crc`.
        """
        if not self._at_end() or self._left:
            raise DamagedError("it is cut short")
        check_crc(self._crc, crc)


def check_crc(actual: int, expected: int) -> None:
    """Compare two CRC-32s.

    Raises:
        DamagedError: they differ.
    """
    if actual != expected:
        raise DamagedError(f"its CRC-32 is {actual:08x}, not {expected:08x}")


def gzip_member(data: bytes) -> bytes:
    """Return `data` as one gzip member."""
    return b"".join((GZIP_HEADER, squeeze(data), gzip_trailer(crc32(data), len(data))))


def gzip_trailer(crc: int, size: int) -> bytes:
    """Return the end of a gzip member whose contents have this CRC-32 and size in bytes."""
    return struct.pack("<2L", crc, size & 0xFFFFFFFF)  # the format keeps the size modulo 2^32 (RFC 1952, 2.3.1)


def stored_header(size: int, *, final: bool) -> bytes:
    """Return the header of a stored block of `size` bytes (at most 65535)."""
    return struct.pack("<B2H", final, size, size ^ 0xFFFF)


def squeeze(data: bytes) -> bytes:
    """Return `data` as a deflate stream: runs of zero bytes as matches, the rest as stored blocks."""
    out: list[bytes] = []
    at, opened = 0, False  # opened: the previous block ends with the header bits of the next stored block
    runs = [run.span() for run in _ZEROS.finditer(data)]
    for index, (begin, end) in enumerate(runs):
        if begin > at or opened:
            _add_stored(out, data[at:begin], final=False, opened=opened)
        at, opened = end, True
        if at == len(data):
            out.append(_zeros(end - begin, final=True, follow=""))
            return b"".join(out)
        ends = index == len(runs) - 1 and len(data) - at <= STORED_MAX
        out.append(_zeros(end - begin, final=False, follow="final" if ends else "more"))
    _add_stored(out, data[at:], final=True, opened=opened)
    return b"".join(out)


def _add_stored(out: list[bytes], data: bytes, *, final: bool, opened: bool) -> None:
    """Add stored blocks of `data`; with `opened`, the header bits of the first one were already written."""
    for at in range(0, len(data) or 1, STORED_MAX):
        piece = data[at : at + STORED_MAX]
        head = stored_header(len(piece), final=final and at + STORED_MAX >= len(data))
        out += (head[1:] if opened and not at else head, piece)


# Tar headers have runs of few different lengths, and a layer has thousands of headers.
@functools.lru_cache(maxsize=4096)
def _zeros(count: int, *, final: bool, follow: str) -> bytes:
    """Return a block of `count` zero bytes and the header bits of the next stored block ('more', 'final' or '')."""
    # Last block or not, then type 01 (fixed Huffman codes) with its low bit first (RFC 1951, 3.2.3).
    bits = [int(final), 1, 0]
    bits += _literal_zero()
    # A match copies earlier bytes, so the first zero byte has to be a literal.
    left = count - 1
    while left >= _SHORTEST_MATCH:
        base, code, extra = next(row for row in _LENGTHS if row[0] <= left)
        length = min(left, base + (1 << extra) - 1)
        bits += _length_code(code)
        bits += [(length - base) >> index & 1 for index in range(extra)]
        bits += [0] * 5  # distance 1
        left -= length
    bits += _literal_zero() * left
    bits += [0] * 7  # end of block
    if follow:
        # A stored block starts at any bit and is aligned only after its header, so the header bits belong to this byte.
        bits += [int(follow == "final"), 0, 0]
    bits += [0] * (-len(bits) % 8)
    return bytes(sum(bit << shift for shift, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def _literal_zero() -> list[int]:
    return [0, 0, 1, 1, 0, 0, 0, 0]  # the fixed code of the literal 0 (RFC 1951, 3.2.6)


def _length_code(code: int) -> list[int]:
    """Return the fixed Huffman code of a length, most significant bit first."""
    value, width = (code - 256, 7) if code < 280 else (0b11000000 + code - 280, 8)  # noqa: PLR2004 - RFC 1951, 3.2.6
    return [value >> shift & 1 for shift in reversed(range(width))]
