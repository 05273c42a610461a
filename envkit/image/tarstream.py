"""Read a tar sequentially and strictly: unknown kinds of entries and inexact data are errors.

Formats: POSIX ustar and pax, and GNU's long names. The size of headers is limited, so a hostile tar cannot fill the
memory. Sparse files, which layers of images do not have, are refused.
Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; the GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.ground.errors import IntegrityError
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.image.deflate import Readable

BLOCK = 512
_MOST_HEADER = 1 << 20  # bytes; real long names and attributes have thousands
_MOST_PADDING = 64 << 20  # bytes after the end; writers fill a record, which has 10 KiB, on tapes up to some MiB
_LARGE_NUMBER = 0x80  # flag of GNU's binary numbers
_GNU = {b"L": "path", b"K": "linkpath"}  # long name and link target: the record of a pax header that says the same
_APPLIED = frozenset(["path", "linkpath", "size", "uid", "gid", "uname", "gname"])  # records that change an entry


class Kind(enum.Enum):
    """The kind of an entry."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    HARD_LINK = "hard link"
    DEVICE = "device"
    PIPE = "pipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a tar; `offset` is the position of its contents."""

    name: str
    kind: Kind
    size: int
    mode: int
    uid: int
    gid: int
    mtime: int
    target: str
    offset: int


class Source:
    """A stream that is read sequentially, in exact amounts."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.position = 0

    def exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes; raise IntegrityError if there are fewer."""
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
        """Yield exactly `size` bytes in pieces."""
        left = size
        while left:
            piece = self.exactly(min(left, 1 << 18))
            left -= len(piece)
            yield piece

    def end(self) -> None:
        """Read the padding after the last entry to the end of the stream.

        Raises:
            IntegrityError: it is not only zeros, or longer than any writer makes it.
        """
        empty, start = bytes(1 << 18), self.position
        while piece := self._file.read(len(empty)):
            self.position += len(piece)
            if piece != (empty if len(piece) == len(empty) else bytes(len(piece))):
                raise IntegrityError("a tar goes on after its end")
            # A sparse file has gigabytes of zeros at no cost, and reading them takes seconds.
            if self.position - start > _MOST_PADDING:
                raise IntegrityError(f"a tar has more than {shown_size(_MOST_PADDING, 'MiB')} of padding after its end")


# `\0` is a regular file in the oldest format; `7` is a contiguous file, which most systems read as a regular one.
_KINDS = {
    b"0": Kind.FILE, b"\0": Kind.FILE, b"7": Kind.FILE, b"1": Kind.HARD_LINK, b"2": Kind.LINK,
    b"3": Kind.DEVICE, b"4": Kind.DEVICE, b"5": Kind.FOLDER, b"6": Kind.PIPE,
}  # fmt: skip


def entries(source: Source, *, skip: Callable[[int], None] | None = None) -> Iterator[Entry]:
    """Yield the entries of a tar. Contents that the caller does not read are skipped.

    `skip`, if given, skips a number of bytes without reading them.

    Raises:
        IntegrityError: the tar is damaged, or has an unknown kind of entry.
    """
    extended: dict[str, str] = {}
    while (header := source.exactly(BLOCK)).strip(b"\0"):
        _check(header, source.position)
        kind, size = header[156:157], _number(header[124:136])
        # x: a pax header for the next entry. g: one for all that follow.
        if kind in b"xgLK":
            if size > _MOST_HEADER:
                raise IntegrityError(f"a tar has a header of {size} bytes, more than {_MOST_HEADER}")
            data = source.exactly(-(-size // BLOCK) * BLOCK)[:size]
            records = {_GNU[kind]: _text(data)} if kind in _GNU else _records(data)
            # Engines (with Go's archive/tar) and GNU tar differ here: whether an empty name counts, which of several
            # headers is applied, and whether a global one is.
            if "" in (records.get("path"), records.get("linkpath")):
                raise IntegrityError("a tar has an empty name")
            if extended and (kind in b"xg" or extended.keys() & records):
                raise IntegrityError("a tar has several extended headers for one entry")
            if kind != b"g":
                extended |= records
            # `git archive` writes one with only a comment.
            elif changed := sorted(key for key in records if key in _APPLIED or key.startswith("GNU.sparse")):
                raise IntegrityError(
                    f"a tar has a global header with {changed[0]!r:.80}, which only some programs apply"
                )
            continue
        entry = _entry(header, extended, source.position)
        extended = {}
        yield entry
        _pass(source, entry, skip)
    # The tar ends at its first zero block. Some readers go on after it (GNU tar with --ignore-zeros), and would see
    # entries that were not checked here.
    source.end()


def _pass(source: Source, entry: Entry, skip: Callable[[int], None] | None) -> None:
    """Skip the rest of an entry's contents, including the padding."""
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
    # In GNU's format the bytes of ustar's prefix contain times and sparse tables.
    if header[257:262] == b"ustar" and header[257:265] != b"ustar  \0":
        prefix = _text(header[345:500])
        name = f"{prefix}/{name}" if prefix else name
    name = extended.get("path", name)
    kind = _KINDS.get(header[156:157])
    if kind is None or any(key.startswith("GNU.sparse") for key in extended):
        raise IntegrityError(f"a tar has an entry of an unknown kind: {name[:200]!r}")
    # The oldest format writes folders as files whose name ends with a slash.
    old_folder = kind is Kind.FILE and name.endswith("/")
    if old_folder:
        kind = Kind.FOLDER

    def number(key: str, field: bytes) -> int:
        text = extended.get(key)
        try:
            # Times in pax headers can have a fraction; entries have whole seconds.
            return _number(field) if text is None else int(text.partition(".")[0])
        except ValueError:
            raise IntegrityError(f"a tar has an invalid {key} for {name[:200]!r}: {(text or '')[:40]!r}") from None

    size = number("size", header[124:136])
    # Go's archive/tar skips the contents of a folder, GNU tar takes them for the next entries.
    if size < 0 or (old_folder and size):
        raise IntegrityError(f"a tar has an invalid size for {name[:200]!r}: {size} bytes")
    return Entry(
        name=name,
        kind=kind,
        # Some writers state the size of the linked file for a hard link, without contents. Go's archive/tar, which
        # engines use, also takes contents only for files.
        size=size if kind is Kind.FILE else 0,
        # Some writers include the type of the file: 0o100644.
        mode=_number(header[100:108]) & 0o7777,
        uid=number("uid", header[108:116]),
        gid=number("gid", header[116:124]),
        mtime=number("mtime", header[136:148]),
        target=extended.get("linkpath", _text(header[157:257])),
        offset=offset,
    )


def _check(header: bytes, position: int) -> None:
    """Check the header's checksum: the sum of its bytes, with blanks in place of the checksum."""
    if _number(header[148:156]) != sum(header[:148]) + 8 * 0x20 + sum(header[156:]):
        raise IntegrityError(f"a tar has a damaged header before byte {position}")


def _number(field: bytes) -> int:
    """Return an octal number, or one in GNU's binary form for large values."""
    if field[0] & _LARGE_NUMBER:
        # Bit 6 is the sign, for times before 1970. A size of -1 is refused.
        return int.from_bytes(bytes([field[0] & 0x3F, *field[1:]])) if not field[0] & 0x40 else -1
    try:
        # Fields end with a zero byte or a blank. Unused ones may be empty.
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        raise IntegrityError(f"a tar has an invalid number: {field!r}") from None


def _text(field: bytes) -> str:
    # Names in a layer are bytes; surrogateescape preserves those that are not UTF-8.
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[str, str]:
    """Return the records of a pax header, each `LENGTH KEY=VALUE` and a newline."""
    records: dict[str, str] = {}
    while data:
        length, space, _ = data[:24].partition(b" ")
        if not space or not length.isdigit() or not len(length) + 2 < int(length) <= len(data):
            raise IntegrityError("a tar has a damaged pax header")
        record, data = data[len(length) + 1 : int(length) - 1], data[int(length) :]
        key, _, value = record.partition(b"=")
        # Readers written in C would cut the name there.
        if b"\0" in value and key in (b"path", b"linkpath"):
            raise IntegrityError("a tar has a name with a zero byte")
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
    return records
