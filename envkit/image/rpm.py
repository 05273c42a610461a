"""Read the RPM database of distributions of the last ten years: SQLite, or a Berkeley DB hash file.

Both contain one header per package, in the same format. The files come from images, so every number in them is checked
against the existing bytes.
Source: rpm's own documentation, "RPM V4 Package Format", header structure; Berkeley DB 5.3, src/dbinc/db_page.h.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Fedora has the database below /usr since release 36. `Packages` is Berkeley DB's, of RHEL 8 and earlier.
FILES = ("var/lib/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/rpm/Packages")
"""The files with headers; other files in these folders are indexes."""
PLACE = re.compile(r"^(?:var/lib|usr/lib/sysimage)/rpm/[^/]{1,200}$")
_SQLITE = b"SQLite format 3\0"
_NAME, _VERSION, _RELEASE, _EPOCH, _SIZE, _LICENSE, _ARCH = 1000, 1001, 1002, 1003, 1009, 1014, 1022
_LONG_SIZE = 5009  # replaces _SIZE from 4 GiB on
_TEXTS = (6, 8, 9)  # a string, a list of strings, a string with translations
_NUMBERS = {4: ">I", 5: ">Q"}  # type -> struct format
_HASH_MAGIC = 0x061561  # of a Berkeley DB file with a hash table
_HASH_PAGES = (2, 13)  # unsorted, sorted
_PAGE, _OFF_PAGE = 26, 3
_MOST_TEXT = 300  # characters of a value
_MOST_STEPS = 10_000_000  # of SQLite's virtual machine; a real list of 1000 packages takes 10,000
_KEYS = "gpg-pubkey"  # imported keys are listed as packages


@dataclass(frozen=True, slots=True)
class Rpm:
    """An installed RPM package."""

    name: str
    version: str  # `EPOCH:VERSION-RELEASE`, without an epoch that is zero
    arch: str | None
    license: str | None
    unpacked: int | None = None  # bytes of its files


def packages(data: bytes) -> tuple[Rpm, ...] | None:
    """Return the installed packages of a database; None if it is damaged or of another kind."""
    try:
        headers = list(_of_sqlite(data) if data.startswith(_SQLITE) else _of_hash(data))
        installed = [package for package in map(_package, headers) if package is not None and package.name != _KEYS]
    except (sqlite3.Error, struct.error, ValueError, IndexError):
        return None
    return tuple(sorted(installed, key=lambda package: (package.name, package.version, package.arch or "")))


def _of_sqlite(data: bytes) -> Iterator[bytes]:
    # Bytes 18 and 19 are 2 for a database with a write-ahead log, which SQLite cannot open in memory; 1 is without.
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data[:18] + b"\1\1" + data[20:])
        # `Packages` can be a view or have computed columns, which run a query of the image: limit time and memory.
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(len(data), 1 << 20))
        # SQLite calls the handler after this many steps, and a result other than 0 ends the query.
        database.set_progress_handler(lambda: 1, _MOST_STEPS)
        for (blob,) in database.execute("SELECT blob FROM Packages"):
            if isinstance(blob, bytes):
                yield blob


def _of_hash(data: bytes) -> Iterator[bytes]:
    """Yield the values of a hash file. All pages have the same size; a large value is in its own chain of pages."""
    # The byte order is that of the machine that wrote the file.
    order = next((mark for mark in "<>" if struct.unpack_from(f"{mark}I", data, 12)[0] == _HASH_MAGIC), None)
    if order is None:
        raise ValueError("not a hash file")
    size = struct.unpack_from(f"{order}I", data, 20)[0]
    if size < 512 or size > 1 << 16 or len(data) % size:  # noqa: PLR2004 - the smallest page of Berkeley DB
        raise ValueError("no page size")
    # Offsets in a page: 16 next page, 20 number of entries, 22 bytes in use, 25 type.
    for start in range(size, len(data), size):
        page = data[start : start + size]
        if page[25] in _HASH_PAGES:
            count = struct.unpack_from(f"{order}H", page, 20)[0]
            offsets = struct.unpack_from(f"{order}{count}H", page, _PAGE)
            # Keys and values alternate, from the end of the page backwards.
            for index in range(1, count, 2):
                at = offsets[index]
                if page[at] == _OFF_PAGE:
                    number, length = struct.unpack_from(f"{order}II", page, at + 4)
                    yield _chain(data, size, order, number)[:length]
                else:
                    yield page[at + 1 : offsets[index - 1]]


def _chain(data: bytes, size: int, order: str, number: int) -> bytes:
    """Return a value that is stored in a chain of pages."""
    pieces: list[bytes] = []
    while number:
        if len(pieces) > len(data) // size:
            raise ValueError("endless chain of pages")
        page = data[number * size : (number + 1) * size]
        used = struct.unpack_from(f"{order}H", page, 22)[0]
        pieces.append(page[_PAGE : _PAGE + used])
        number = struct.unpack_from(f"{order}I", page, 16)[0]
    return b"".join(pieces)


def _package(header: bytes) -> Rpm | None:
    """Return the package of a header; None for other values, such as the counter of the database."""
    if len(header) < 8:  # noqa: PLR2004 - two counts at the start
        return None
    # The number of index entries, 16 bytes each, and the size of the data after them.
    count, size = struct.unpack_from(">II", header)
    start = 8 + 16 * count
    if start + size > len(header):
        return None
    store = header[start : start + size]
    texts: dict[int, str] = {}
    numbers: dict[int, int] = {}
    for tag, kind, at, _ in struct.iter_unpack(">IIII", header[8:start]):
        if tag in (_EPOCH, _SIZE, _LONG_SIZE) and kind in _NUMBERS:
            numbers[tag] = struct.unpack_from(_NUMBERS[kind], store, at)[0]
        elif tag in (_NAME, _VERSION, _RELEASE, _LICENSE, _ARCH) and kind in _TEXTS:
            text = store[at : store.index(b"\0", at)].decode(errors="replace")
            if text.isprintable() and len(text) <= _MOST_TEXT:
                texts[tag] = text
    if not {_NAME, _VERSION, _RELEASE} <= texts.keys():
        return None
    epoch = numbers.get(_EPOCH, 0)
    version = f"{texts[_VERSION]}-{texts[_RELEASE]}"
    return Rpm(
        name=texts[_NAME],
        version=f"{epoch}:{version}" if epoch else version,
        arch=texts.get(_ARCH),
        license=texts.get(_LICENSE),
        unpacked=numbers.get(_SIZE, numbers.get(_LONG_SIZE)),
    )
