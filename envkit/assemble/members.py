"""Members of a gzip file made without a compressor.

A gzip file may have many members (RFC 1952, 2.2). A layer is made of two kinds: small ones with tar headers and what
envkit itself writes, and entries of zip files, whose deflate data is taken over as it is. The small ones hold text as
it is and long runs of zero bytes as one match, so their bytes do not depend on the version of any library.
"""

from __future__ import annotations

import functools
import re
import struct

from envkit.image.deflate import crc32

# Deflate, no name, no time, no flags, unknown system (RFC 1952, 2.3).
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
STORED_MAX = 0xFFFF
_ZEROS = re.compile(rb"\0{16,}")
# Length codes of RFC 1951, 3.2.5: (shortest length, code, extra bits), longest first.
_LENGTHS = (
    (258, 285, 0), (227, 284, 5), (195, 283, 5), (163, 282, 5), (131, 281, 5), (115, 280, 4), (99, 279, 4),
    (83, 278, 4), (67, 277, 4), (59, 276, 3), (51, 275, 3), (43, 274, 3), (35, 273, 3), (31, 272, 2), (27, 271, 2),
    (23, 270, 2), (19, 269, 2), (17, 268, 1), (15, 267, 1), (13, 266, 1), (11, 265, 1), (10, 264, 0), (9, 263, 0),
    (8, 262, 0), (7, 261, 0), (6, 260, 0), (5, 259, 0), (4, 258, 0), (3, 257, 0),
)  # fmt: skip
_SHORTEST_MATCH = 3


def member(data: bytes) -> bytes:
    """`data` as one gzip member."""
    return b"".join((HEADER, squeeze(data), trailer(crc32(data), len(data))))


def trailer(crc: int, size: int) -> bytes:
    """The end of a member whose contents have this CRC-32 and size in bytes."""
    return struct.pack("<2L", crc, size & 0xFFFFFFFF)


def stored(size: int, *, final: bool) -> bytes:
    """What precedes `size` (at most 65535) bytes that are taken over as they are."""
    return struct.pack("<B2H", final, size, size ^ 0xFFFF)


def squeeze(data: bytes) -> bytes:
    """`data` as a deflate stream: runs of zero bytes as matches, all else as it is."""
    out: list[bytes] = []
    at, opened = 0, False  # whether the block before has written the header bits of the stored block that follows it
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
    """Add blocks that hold `data` as it is; the header bits of the first are there already when `opened`."""
    for at in range(0, len(data) or 1, STORED_MAX):
        piece = data[at : at + STORED_MAX]
        head = stored(len(piece), final=final and at + STORED_MAX >= len(data))
        out += (head[1:] if opened and not at else head, piece)


@functools.lru_cache(maxsize=4096)
def _zeros(count: int, *, final: bool, follow: str) -> bytes:
    """A block of `count` zero bytes, and the header bits of a stored block that follows and is the last or not."""
    bits = [int(final), 1, 0]
    bits += _literal_zero()
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
        bits += [int(follow == "final"), 0, 0]
    bits += [0] * (-len(bits) % 8)
    return bytes(sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def _literal_zero() -> list[int]:
    return [0, 0, 1, 1, 0, 0, 0, 0]


def _length_code(code: int) -> list[int]:
    """The fixed Huffman code of a length, most significant bit first."""
    value, width = (code - 256, 7) if code < 280 else (0b11000000 + code - 280, 8)  # noqa: PLR2004 - RFC 1951, 3.2.6
    return [value >> place & 1 for place in reversed(range(width))]
