"""A tar read forwards, strictly: what is not one of the known kinds of entry, or not exact, is an error.

Formats: POSIX ustar and pax, and GNU's long names. Headers are bounded, so a hostile one costs no memory; sparse
files, which no image's layer has, are refused.
Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; the GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from envkit.ground.errors import IntegrityError

BLOCK = 512
_MOST_HEADER = 1 << 20  # bytes; long names and attributes have thousands
_LARGE_NUMBER = 0x80  # marks GNU's binary numbers


class Kind(enum.Enum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    HARD_LINK = "hard link"
    DEVICE = "device"
    PIPE = "pipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a tar; `offset` is where its content begins."""

    name: str
    kind: Kind
    size: int
    mode: int
    uid: int
    gid: int
    mtime: int
    target: str
    offset: int


class Readable(Protocol):
    """What bytes come from."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""


class Source:
    """Bytes read forwards and exactly."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.position = 0

    def exactly(self, size: int) -> bytes:
        """So many bytes, or an IntegrityError."""
        pieces: list[bytes] = []
        left = size
        while left:
            piece = self._file.read(left)
            if not piece:
                raise IntegrityError(f"a tar ends after {self.position} bytes, in the middle of an entry")
            pieces.append(piece)
            left -= len(piece)
            self.position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, size: int) -> Iterator[bytes]:
        """So many bytes, piece by piece."""
        left = size
        while left:
            piece = self.exactly(min(left, 1 << 18))
            left -= len(piece)
            yield piece

    def rest(self) -> bool:
        """Read to the end; False when anything but zeros comes."""
        clean = True
        while piece := self._file.read(1 << 18):
            self.position += len(piece)
            clean = clean and not piece.strip(b"\0")
        return clean


# `\0` is a regular file of the oldest format, `7` a contiguous file, which systems without such files read as regular.
_KINDS = {
    b"0": Kind.FILE, b"\0": Kind.FILE, b"7": Kind.FILE, b"1": Kind.HARD_LINK, b"2": Kind.LINK,
    b"3": Kind.DEVICE, b"4": Kind.DEVICE, b"5": Kind.FOLDER, b"6": Kind.PIPE,
}  # fmt: skip


def entries(source: Source, *, skip: Callable[[int], None] | None = None) -> Iterator[Entry]:
    """The entries of a tar. Content that the caller does not read before going on is skipped.

    `skip` passes over so many bytes where that is cheaper than reading them.

    Raises:
        IntegrityError: the tar is damaged, or has a kind of entry that is not known.
    """
    extended: dict[str, str] = {}
    while (header := source.exactly(BLOCK)).strip(b"\0"):
        _check(header, source.position)
        kind, size = header[156:157], _number(header[124:136])
        if kind in b"xgLK":
            if size > _MOST_HEADER:
                raise IntegrityError(f"a tar has a header of {size} bytes")
            data = source.exactly(-(-size // BLOCK) * BLOCK)[:size]
            if kind == b"x":
                extended |= _records(data)
            elif kind == b"L":
                extended["path"] = _text(data)
            elif kind == b"K":
                extended["linkpath"] = _text(data)
            continue
        entry = _entry(header, extended, source.position)
        extended = {}
        yield entry
        _pass(source, entry, skip)
    if not source.rest():
        raise IntegrityError("a tar goes on after its end")


def _pass(source: Source, entry: Entry, skip: Callable[[int], None] | None) -> None:
    """Go to the end of an entry's content, padding included."""
    if entry.kind is not Kind.FILE:
        return
    left = entry.offset + -(-entry.size // BLOCK) * BLOCK - source.position
    if skip is not None:
        skip(left)
        return
    for _ in source.pieces(left):
        pass


def _entry(header: bytes, extended: dict[str, str], offset: int) -> Entry:
    name = _text(header[:100])
    # GNU's own format has times and sparse tables where ustar has the prefix.
    if header[257:262] == b"ustar" and header[257:265] != b"ustar  \0":
        prefix = _text(header[345:500])
        name = f"{prefix}/{name}" if prefix else name
    name = extended.get("path", name)
    kind = _KINDS.get(header[156:157])
    if kind is None or any(key.startswith("GNU.sparse") for key in extended):
        raise IntegrityError(f"a tar has an entry of an unknown kind: {name[:200]!r}")
    if kind is Kind.FILE and name.endswith("/"):
        kind = Kind.FOLDER  # as the oldest format writes folders

    def number(key: str, field: bytes) -> int:
        text = extended.get(key)
        try:
            # pax times may have a fraction; entries have whole seconds.
            return _number(field) if text is None else int(text.partition(".")[0])
        except ValueError:
            raise IntegrityError(f"a tar says {key}={text[:40] if text else ''!r} of {name[:200]!r}") from None

    size = number("size", header[124:136])
    if size < 0:
        raise IntegrityError(f"a tar says that {name[:200]!r} has {size} bytes")
    return Entry(
        name=name,
        kind=kind,
        size=size if kind is Kind.FILE else 0,
        mode=_number(header[100:108]) & 0o7777,
        uid=number("uid", header[108:116]),
        gid=number("gid", header[116:124]),
        mtime=number("mtime", header[136:148]),
        target=extended.get("linkpath", _text(header[157:257])),
        offset=offset,
    )


def _check(header: bytes, position: int) -> None:
    """The header's own checksum: the sum of its bytes, with blanks in the checksum's place."""
    if _number(header[148:156]) != sum(header[:148]) + 8 * 0x20 + sum(header[156:]):
        raise IntegrityError(f"a tar has a damaged header before byte {position}")


def _number(field: bytes) -> int:
    """An octal number, or GNU's binary one for those that do not fit."""
    if field[0] & _LARGE_NUMBER:
        # Bit 6 is the sign: times before 1970 have it. As a size, -1 is refused.
        return int.from_bytes(bytes([field[0] & 0x3F, *field[1:]])) if not field[0] & 0x40 else -1
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        raise IntegrityError(f"a tar has {field!r} for a number") from None


def _text(field: bytes) -> str:
    # Names in a layer are bytes; what is not UTF-8 has to come out again as it was.
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[str, str]:
    """The records of a pax header: `LENGTH KEY=VALUE` and a newline each."""
    records: dict[str, str] = {}
    while data:
        length, space, _ = data[:24].partition(b" ")
        if not space or not length.isdigit() or not len(length) + 2 < int(length) <= len(data):
            raise IntegrityError("a tar has a damaged pax header")
        record, data = data[len(length) + 1 : int(length) - 1], data[int(length) :]
        key, _, value = record.partition(b"=")
        if b"\0" in value and key in (b"path", b"linkpath"):
            raise IntegrityError("a tar has a name with a zero byte")
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
    return records
