"""Read the entries of a zip file strictly: files that readers could interpret differently are refused.

Readers disagree about files with two directories, several names for an entry, or overlapping entries, and attackers
exploit that. No index has such wheels.
Source: PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.5.3.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

from envkit.ground import imagepaths
from envkit.ground.errors import IntegrityError

FETCH_AGAIN = "delete the file and fetch it again from its index"
"""The hint for damaged package files."""
_END_MAGIC = b"PK\5\6"
_END = struct.Struct("<4s4H2LH")  # 4.3.16
_END64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_LOCATOR = struct.Struct("<4sLQL")  # 4.3.15
_CENTRAL = struct.Struct("<4s6H3L5H2L")  # 4.3.12
_LOCAL = struct.Struct("<4s5H3L2H")  # 4.3.7
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # the value is in the zip64 record (4.4.1.4)
_ENCRYPTED, _DESCRIPTOR, _STRONG, _UTF8, _MASKED = 0x1, 0x8, 0x40, 0x800, 0x2000  # bits of 4.4.4
_STORED, _DEFLATED = 0, 8
_ZIP64_EXTRA, _UNICODE_NAME_EXTRA = 0x0001, 0x7075  # 4.5.3; Info-ZIP's second name, 4.6.9
_MAX_DIRECTORY = 32 << 20  # bytes; the 11,502 entries of torch 2.7.1 need 1.3 MB
_MAX_RATIO = 1040  # deflate reaches at most 1032


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a zip file; `offset` is the position of its data."""

    name: str
    offset: int
    packed: int
    size: int
    crc: int
    deflated: bool
    executable: bool

    @property
    def is_folder(self) -> bool:
        """Whether the entry is a folder."""
        return self.name.endswith("/")


class Source(Protocol):
    """A file of known size with random access, on this machine or on a server."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from an offset, fewer at the end of the file."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A `Source` for an open file."""

    descriptor: int

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from an offset, fewer at the end of the file."""
        return os.pread(self.descriptor, length, offset)


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of the directory. Its local header has not been read, so `entry.offset` is 0."""

    entry: Entry
    header: int  # the position of its local header
    raw: bytes  # its stored name
    flags: int
    method: int


def entries(descriptor: int, label: str) -> tuple[Entry, ...]:
    """Return all entries of an open zip file, in the order of its directory.

    Raises:
        IntegrityError: the file is cut short, contradicts itself, or has names or entries that packages may not have.
    """
    source = Opened(descriptor)
    rows, start = _listed(source, label)
    members = [located(source, label, row) for row in rows]
    spans = [(row.header, entry.offset + entry.packed, entry.name) for row, entry in zip(rows, members, strict=True)]
    _check_spans(label, spans, start)
    return tuple(members)


def listed(source: Source, label: str) -> tuple[Listed, ...]:
    """Read only the directory at the end of a zip file; `located` finds the data of an entry.

    Raises:
        IntegrityError: as `entries`, as far as the directory shows it.
    """
    return _listed(source, label)[0]


def _listed(source: Source, label: str) -> tuple[tuple[Listed, ...], int]:
    """Return the rows of the directory, and its position."""
    directory, start, count = _directory(source, label)
    rows: list[Listed] = []
    position = 0
    for _ in range(count):
        if len(directory) - position < _CENTRAL.size:
            refuse(label, "its directory is cut short")
        record = _CENTRAL.unpack_from(directory, position)
        lengths = record[10:13]
        name_at = position + _CENTRAL.size
        position = name_at + sum(lengths)
        if record[0] != b"PK\1\2" or position > len(directory):
            refuse(label, "its directory is damaged")
        raw = directory[name_at : name_at + lengths[0]]
        extra = directory[name_at + lengths[0] : name_at + lengths[0] + lengths[1]]
        entry, header = _entry(label, record, raw, extra)
        if header + _LOCAL.size + len(raw) + entry.packed > start:
            refuse(label, f"{entry.name!r} is not at the position in the directory")
        rows.append(Listed(entry, header, raw, record[3], record[4]))
    if position != len(directory):
        refuse(label, f"its directory has more than the stated {count} entries")
    _check_names(label, [row.entry for row in rows])
    return tuple(rows), start


def located(source: Source, label: str, row: Listed) -> Entry:
    """Return an entry with the position of its data, after comparing its local header with the directory.

    Raises:
        IntegrityError: the local header differs or is missing.
    """
    return replace(row.entry, offset=_data_offset(source, label, row))


def _directory(source: Source, label: str) -> tuple[bytes, int, int]:
    """Return the central directory, its position, and the stated number of entries."""
    size = source.size
    # Up to 65535 bytes of comment can follow the end record; in zip64 files a locator precedes it.
    tail_at = max(0, size - _END.size - _FULL16 - _LOCATOR.size)
    tail = source.read(tail_at, size - tail_at)
    ends = [at for at in _positions(tail) if _ends_file(tail, at)]
    if len(ends) != 1:
        refuse(label, "it is not a zip file or is cut short" if not ends else "it has two directories")
    (_, disk, first_disk, here, count, length, start, _) = _END.unpack_from(tail, ends[0])
    end = tail_at + ends[0]
    at = ends[0] - _LOCATOR.size
    if at >= 0 and tail[at : at + 4] == b"PK\6\7":
        _, _, end64, disks = _LOCATOR.unpack_from(tail, at)
        # The position has 64 bits, and pread raises OverflowError for 2^63 and more.
        record = source.read(end64, _END64.size) if end64 < size else b""
        if len(record) < _END64.size or record[:4] != b"PK\6\6" or disks != 1:
            refuse(label, "its directory is damaged")
        _, length64, _, _, disk64, first64, here64, count64, size64, start64 = _END64.unpack(record)
        # Each field of the short record has the same value as in the zip64 record, or all bits set.
        narrow = ((count, count64, _FULL16), (here, here64, _FULL16), (length, size64, _FULL32))
        if any(a not in (b, full) for a, b, full in (*narrow, (start, start64, _FULL32))):
            refuse(label, "it has two directories")
        # The length of the record does not include its first 12 bytes (4.3.14.1).
        if end64 + 12 + length64 != end - _LOCATOR.size or disk64 or first64:
            refuse(label, "its directory is damaged")
        here, count, length, start, end = here64, count64, size64, start64, end64
    elif disk or first_disk:
        refuse(label, "it is one part of a multi-part archive")
    if start + length != end or here != count:
        refuse(label, "its directory is not at the stated position")
    if length > _MAX_DIRECTORY:
        refuse(label, f"its directory has {length} bytes, more than {_MAX_DIRECTORY}")
    # The tail usually has the directory already, which saves another request to a server.
    inside = start - tail_at
    directory = tail[inside : inside + length] if inside >= 0 else source.read(start, length)
    return directory, start, count


def _positions(data: bytes) -> list[int]:
    positions, at = [], data.find(_END_MAGIC)
    while at >= 0:
        positions.append(at)
        at = data.find(_END_MAGIC, at + 1)
    return positions


def _ends_file(tail: bytes, at: int) -> bool:
    if len(tail) - at < _END.size:
        return False
    # The signature can also occur in data or in the comment. Only the real record ends exactly with the file.
    comment: int = _END.unpack_from(tail, at)[-1]
    return at + _END.size + comment == len(tail)


def _entry(label: str, record: tuple[int, ...], raw: bytes, extra: bytes) -> tuple[Entry, int]:
    """Return the entry of a directory record, and the position of its local header."""
    flags, method, crc, packed, size, disk = record[3], record[4], record[7], record[8], record[9], record[13]
    attributes, header = record[15], record[16]
    name = _name(label, raw, flags)
    if flags & (_ENCRYPTED | _STRONG | _MASKED):
        refuse(label, f"{name!r} is encrypted")
    if method not in (_STORED, _DEFLATED):
        refuse(label, f"{name!r} is compressed with method {method}, which wheels may not use")
    size, packed, header = _widened(label, name, extra, (size, packed, header))
    # On Unix, the upper half of the attributes is the mode.
    kind = stat.S_IFMT(attributes >> 16)
    # 0: written on Windows, without a mode.
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or disk:
        refuse(label, f"{name!r} is a link or a special file")
    if (kind == stat.S_IFDIR) != name.endswith("/") and kind:
        refuse(label, f"{name!r} is both a folder and a file")
    if name.endswith("/") and size:
        refuse(label, f"{name!r} is a folder with contents")
    if method == _STORED and packed != size:
        refuse(label, f"{name!r} is stored without compression, but has {packed} bytes for {size}")
    if size > packed * _MAX_RATIO:
        refuse(label, f"{name!r} would inflate from {packed} to {size} bytes, which deflate cannot do")
    entry = Entry(
        name=name, offset=0, packed=packed, size=size, crc=crc, deflated=method == _DEFLATED,
        executable=bool((attributes >> 16) & 0o111),
    )  # fmt: skip
    return entry, header


def _name(label: str, raw: bytes, flags: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")  # cp437 without the flag, see appendix D
    except UnicodeDecodeError:
        refuse(label, f"the name {raw!r} is not UTF-8")
    if why := imagepaths.fault(name.removesuffix("/")):
        refuse(label, why)
    return name


def _widened(label: str, name: str, extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return size, packed size and header position; values that need more than 32 bits come from the zip64 field."""
    wide, at = list(values), 0
    seen = False
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind == _UNICODE_NAME_EXTRA or (kind == _ZIP64_EXTRA and seen):
            refuse(label, f"{name!r} has two names or two sizes")
        if kind != _ZIP64_EXTRA:
            continue
        seen = True
        # The field has 64-bit values only for those that have all bits set, in the order size, packed size, position.
        for index, value in enumerate(values):
            if value == _FULL32:
                if len(body) < 8:  # noqa: PLR2004 - a 64-bit number
                    refuse(label, f"{name!r} lacks its size")
                (wide[index],), body = struct.unpack_from("<Q", body), body[8:]
    if _FULL32 in values and not seen:
        refuse(label, f"{name!r} lacks its size")
    return wide[0], wide[1], wide[2]


def _data_offset(source: Source, label: str, row: Listed) -> int:
    """Return the position of an entry's data, after comparing its local header with the directory."""
    entry, header, raw = row.entry, row.header, row.raw
    # Some bytes more than the name: without them, a longer local name would be cut to an equal one.
    data = source.read(header, _LOCAL.size + len(raw) + 64)
    if len(data) < _LOCAL.size + len(raw) or data[:4] != b"PK\3\4":
        refuse(label, f"{entry.name!r} is not at the position in the directory")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack_from(data)
    same = flags == row.flags and method == row.method and data[_LOCAL.size : _LOCAL.size + name_length] == raw
    # With a data descriptor, these three follow the data, and the local header has zeros.
    if same and not flags & _DESCRIPTOR:
        if _FULL32 in (packed, size):
            at = header + _LOCAL.size + name_length
            size, packed, _ = _widened(label, entry.name, source.read(at, extra_length), (size, packed, 0))
        same = (crc, packed, size) == (entry.crc, entry.packed, entry.size)
    if not same:
        refuse(label, f"{entry.name!r} has a local header that differs from the directory")
    return header + _LOCAL.size + int(name_length) + int(extra_length)


def _check_spans(label: str, spans: list[tuple[int, int, str]], directory: int) -> None:
    """Refuse entries that overlap each other or the directory."""
    # In a zip bomb, many entries share the same data, so the total is far more than the file (D. Fifield, "A better zip
    # bomb").
    spans.sort()
    end, last = 0, ""
    for begin, stop, name in spans:
        if begin < end:
            refuse(label, f"{name!r} overlaps {last!r}")
        end, last = stop, name
    if end > directory:
        refuse(label, f"{last!r} overlaps the directory")


def _check_names(label: str, members: list[Entry]) -> None:
    """Refuse duplicate names, and names that are both a file and a folder."""
    files: set[str] = set()
    folders: set[str] = set()
    for entry in members:
        name = entry.name.removesuffix("/")
        if name in files or (entry.is_folder and entry.name in folders):
            refuse(label, f"it contains {name!r} twice")
        if entry.is_folder:
            folders.add(entry.name)
        else:
            files.add(name)
    above: set[str] = set()
    for entry in members:  # stop at parents that were already visited
        parent = entry.name.removesuffix("/").rpartition("/")[0]
        while parent and parent not in above:
            above.add(parent)
            parent = parent.rpartition("/")[0]
    if clash := min(above & files, default=None):
        refuse(label, f"{clash!r} is both a folder and a file")


def refuse(label: str, why: str) -> NoReturn:
    """Raise the error for a package file that is not used.

    Raises:
        IntegrityError: always.
    """
    raise IntegrityError(f"{label} is refused: {why}", hint=FETCH_AGAIN)
