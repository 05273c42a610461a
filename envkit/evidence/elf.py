"""Read the symbol versions and the GPU code of a shared library from its beginning.

A library is read as a stream, so nothing at its end (section headers, the dynamic segment) is used, and nothing in it
is decompressed or executed. Layouts: the ELF specification and the gABI's symbol versioning. A fat binary of CUDA has
a header of 16 bytes, then for each program a header and its code; the headers are not compressed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.ground.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_PROGRAM = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_LOAD = 1  # PT_LOAD
_CLASS64, _LITTLE = 2, 1  # ELFCLASS64, ELFDATA2LSB
_PROGRAMS_MAX = 64  # libraries have about ten; the file is untrusted
_SEGMENT_MAX = 64 << 20  # bytes of a first segment; libtorch_cpu.so of torch 2.15.0 has 28 MB
_NEEDS_MAX = 64 << 10  # bytes of .gnu.version_r; libtorch_python.so has 600
_AUX = struct.Struct("<IHHII")  # Elf64_Vernaux: hash, flags, other, name, next
_NEWEST_GLIBC, _NEWEST_GLIBCXX = 60, 50  # minor versions; higher than any that exists

_FAT_MAGIC = b"\x50\xed\x55\xba"  # 0xBA55ED50, little-endian
_FAT = struct.Struct("<IHHQ")  # magic, version, header size, size of the rest
_CODE = struct.Struct("<HHIQ12xI")  # kind, version, header size, size of the code; at 28 the capability
_PTX, _MACHINE = 1, 2
_FAT_MAX = 1 << 30  # bytes
_HEADER_MAX = 4096  # bytes; the known ones have 64 and a few more
_BINARIES_MAX = 150
_CAPABILITIES = range(20, 1000)  # 2.0 to 99.9


@dataclass(frozen=True, slots=True)
class Code:
    """GPU code: compute capabilities with machine code and with PTX, and the number of fat binaries read."""

    machine: tuple[str, ...]
    ptx: tuple[str, ...]
    binaries: int
    offset: int  # of the first one in the library


def first_segment(name: str, stream: Iterable[bytes]) -> bytes:
    """Return the first loaded segment of a library, at most up to the end of its symbol versions.

    They come before the code, which old linkers put into the same segment (15 MB).

    Raises:
        IntegrityError: the stream is not a 64-bit little-endian ELF file, or is truncated.
    """
    data, wanted = bytearray(), _HEADER.size
    known, searched = False, 0
    for piece in stream:
        data += piece
        if not known and len(data) >= 4096:  # noqa: PLR2004 - a page: the program headers are at the beginning
            wanted, known = _segment_end(name, data), True
        need = _first_need(data, searched)
        if need >= 0:
            wanted = min(wanted, need + _NEEDS_MAX)
        searched = max(0, len(data) - _AUX.size)  # an entry may continue in the next piece
        if known and len(data) >= wanted:
            return bytes(data[:wanted])
    if not known:
        wanted = _segment_end(name, data)
    if len(data) < wanted:
        raise _refused(name, "it is cut short")
    return bytes(data[:wanted])


def _first_need(data: bytearray, start: int) -> int:
    """Return the offset of the first Elf64_Vernaux of GLIBC or GLIBCXX at or after `start`; -1 if there is none."""
    offsets = (_need(data, hashed, start) for names in (_GLIBC, _GLIBCXX) for hashed in names.values())
    return min((at for at in offsets if at >= 0), default=-1)


def _need(data: bytes | bytearray, hashed: int, start: int = 0) -> int:
    """Return the offset of an Elf64_Vernaux with this hash at or after `start`; -1 if there is none."""
    pattern = struct.pack("<I", hashed)
    at = data.find(pattern, start)
    # Entries are aligned to four bytes, so a match at another offset is other data.
    while at >= 0 and (at % 4 or not _is_need(data, at)):
        at = data.find(pattern, at + 1)
    return at


def _segment_end(name: str, data: bytes | bytearray) -> int:
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        raise _refused(name, "it is not an ELF file")
    if data[4] != _CLASS64 or data[5] != _LITTLE:
        raise _refused(name, "it is not a 64-bit little-endian ELF file")
    _, _, _, _, _, table, _, _, _, size, count, _, _, _ = _HEADER.unpack_from(data)
    if size != _PROGRAM.size or not 0 < count <= _PROGRAMS_MAX or table + size * count > len(data):
        # Tools such as patchelf move the program headers to the end; the first segment is still at the beginning.
        return min(_SEGMENT_MAX, max(len(data), 4 << 20))
    for number in range(count):
        kind, _, offset, _, _, length, _, _ = _PROGRAM.unpack_from(data, table + number * size)
        if kind == _LOAD:
            # The first segment includes the ELF header, so it begins at offset 0.
            if offset or not 0 < length <= _SEGMENT_MAX:
                raise _refused(name, f"its first segment has {length} bytes at {offset}")
            return int(length)
    raise _refused(name, "it has no segment to load")


def symbol_versions(segment: bytes) -> tuple[str | None, str | None]:
    """Return the newest GLIBC and GLIBCXX symbol version that a library needs: ('2.28', '3.4.22'); None if it has none.

    The versions are found by the hashes of their names in `.gnu.version_r`, because tools that patch a library move
    the names themselves to its end.
    """
    return _newest(segment, _GLIBC), _newest(segment, _GLIBCXX)


def _newest(segment: bytes, names: dict[str, int]) -> str | None:
    return next((version for version, hashed in names.items() if _need(segment, hashed) >= 0), None)  # newest first


def _is_need(segment: bytes | bytearray, at: int) -> bool:
    """Return whether the data at an offset can be an Elf64_Vernaux: its flags, index and next have few valid values."""
    if at + _AUX.size > len(segment):
        return False
    _, flags, other, name, following = _AUX.unpack_from(segment, at)
    # Flags: none or VER_FLG_WEAK. Indexes 0 and 1 are reserved, and bit 15 marks a hidden symbol. `next` is 0 in the
    # last entry of a list.
    return flags in (0, 2) and 2 <= (other & 0x7FFF) < 4096 and name > 0 and following in (0, _AUX.size)  # noqa: PLR2004


def _hash(name: str) -> int:
    """Return the ELF hash of a name (gABI, "Hash Table")."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value ^= high >> 24
        value &= ~high & 0xFFFFFFFF
    return value


_GLIBC = {f"2.{n}": _hash(f"GLIBC_2.{n}") for n in range(_NEWEST_GLIBC, 1, -1)}
_GLIBCXX = {f"3.4.{n}": _hash(f"GLIBCXX_3.4.{n}") for n in range(_NEWEST_GLIBCXX, 0, -1)} | {
    "3.4": _hash("GLIBCXX_3.4")
}


@dataclass(slots=True)
class _Window:
    """A buffer over a stream that is read forwards."""

    stream: Iterator[bytes]
    start: int = 0  # offset of the first byte of `data`
    data: bytearray = field(default_factory=bytearray)

    def reach(self, offset: int) -> bool:
        """Read up to `offset`; return False if the stream ends earlier."""
        while self.start + len(self.data) < offset:
            piece = next(self.stream, None)
            if piece is None:
                return False
            self.data += piece
        return True

    def drop(self, offset: int) -> bool:
        """Read up to `offset` and discard the bytes before it; return False if the stream ends earlier."""
        while self.start + len(self.data) < offset:
            # The bytes are not kept, so skipping GPU code takes no memory.
            self.start += len(self.data)
            self.data.clear()
            piece = next(self.stream, None)
            if piece is None:
                return False
            self.data += piece
        del self.data[: offset - self.start]
        self.start = offset
        return True


def gpu_code(
    name: str, stream: Iterator[bytes], *, least: int, most: int = _BINARIES_MAX, wanted: frozenset[str] = frozenset()
) -> Code:
    """Return the GPU code in the first fat binaries of a library.

    Args:
        name: the file name, for messages.
        stream: the contents of the library.
        least: the number of fat binaries to read in any case.
        most: the number of fat binaries to read while some of `wanted` are missing. A source file may be compiled for
            only some capabilities, and libtorch_cuda.so for aarch64 begins with several for 10.0 only.
        wanted: the capabilities with machine code to look for.

    Raises:
        IntegrityError: a length in a fat binary points outside of it.
    """
    window = _Window(stream)
    machine: set[int] = set()
    ptx: set[int] = set()
    count, first = 0, -1
    while count < least or (count < most and not wanted <= set(_named(machine))):
        at = window.data.find(_FAT_MAGIC)
        if at < 0:
            # The magic number may continue in the next piece.
            keep = window.start + max(0, len(window.data) - len(_FAT_MAGIC) + 1)
            window.drop(keep)
            if not window.reach(keep + len(_FAT_MAGIC)):
                break
            continue
        offset = window.start + at
        window.drop(offset)
        if not window.reach(offset + _FAT.size):
            break
        _, version, header, size = _FAT.unpack_from(window.data)
        if (version, header) != (1, _FAT.size):
            window.drop(offset + 1)  # the same four bytes in other data
            continue
        if size > _FAT_MAX:
            raise _refused(name, f"the fat binary at {offset} claims {size} bytes")
        _programs(name, window, offset + header, offset + header + size, (machine, ptx))
        first = offset if first < 0 else first
        count += 1
    return Code(_named(machine), _named(ptx), count, first)


def _programs(name: str, window: _Window, at: int, end: int, capabilities: tuple[set[int], set[int]]) -> None:
    while at < end:
        window.drop(at)
        if at + _CODE.size > end or not window.reach(at + _CODE.size):
            raise _refused(name, f"the fat binary that ends at {end} is cut short")
        kind, _, header, size, capability = _CODE.unpack_from(window.data)
        if not _CODE.size <= header <= _HEADER_MAX or at + header + size > end:
            raise _refused(name, f"a length in the fat binary that ends at {end} points outside of it")
        if capability in _CAPABILITIES and kind in (_PTX, _MACHINE):
            capabilities[0 if kind == _MACHINE else 1].add(capability)
        at += header + size
    if not window.drop(end):
        raise _refused(name, f"the fat binary that ends at {end} is cut short")


def _named(numbers: set[int]) -> tuple[str, ...]:
    return tuple(f"{number // 10}.{number % 10}" for number in sorted(numbers))


def _refused(name: str, why: str) -> IntegrityError:
    return IntegrityError(f"{name} is refused: {why}", hint="the library is invalid; use the file of another index")
