"""The name by which a shared library wants to be found: DT_SONAME of a 64-bit little-endian ELF file.

Source: System V ABI, "Object Files" and "Dynamic Linking".
"""

from __future__ import annotations

import struct
from typing import IO

_HEADER = 64
_LOAD, _DYNAMIC = 1, 2
_STRING_TABLE, _SONAME = 5, 14
_MOST_DYNAMIC, _MOST_NAME, _MOST_SEGMENTS = 1 << 16, 256, 128


def soname(file: IO[bytes]) -> str | None:
    """The library's own name; None where the file has none, or is no such ELF file."""
    header = file.read(_HEADER)
    if len(header) < _HEADER or header[:6] != b"\x7fELF\x02\x01":
        return None
    (table,), (width, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
    segments = []
    for number in range(min(count, _MOST_SEGMENTS)):
        file.seek(table + number * width)
        row = file.read(56)
        if len(row) < 56:  # noqa: PLR2004 - a segment header's size
            return None
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", row)
        segments.append((kind, offset, address, size))
    for kind, offset, _, size in segments:
        if kind == _DYNAMIC:
            file.seek(offset)
            data = file.read(min(size, _MOST_DYNAMIC))
            entries = dict(struct.iter_unpack("<qQ", data[: len(data) // 16 * 16]))
            return _name(file, segments, entries)
    return None


def _name(file: IO[bytes], segments: list[tuple[int, int, int, int]], entries: dict[int, int]) -> str | None:
    if _STRING_TABLE not in entries or _SONAME not in entries:
        return None
    wanted = entries[_STRING_TABLE]
    for kind, offset, address, size in segments:
        if kind == _LOAD and address <= wanted < address + size:
            file.seek(offset + wanted - address + entries[_SONAME])
            return file.read(_MOST_NAME).split(b"\0", 1)[0].decode("utf-8", "replace") or None
    return None
