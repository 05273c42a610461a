"""Databases that rpm 4.18 and Berkeley DB 5.3 wrote, with three packages; one header fills several pages."""

import gzip
import sqlite3
import struct
from pathlib import Path

import pytest

from envkit.image.rpm import Rpm, packages

PACKAGES = (
    Rpm("epochal", "4:2.0-1.el9", "noarch", "GPLv2+ and LGPLv2+", 0),
    Rpm("many", "1-1", "noarch", "BSD", 0),
    Rpm("plain", "1.2-3.el9", "noarch", "MIT", 0),
)


def database(name: str) -> bytes:
    return gzip.decompress((Path(__file__).with_name("rpm") / f"{name}.gz").read_bytes())


@pytest.mark.parametrize("name", ["rpmdb.sqlite", "Packages"])
def test_both_kinds_of_database(name: str) -> None:
    assert packages(database(name)) == PACKAGES


@pytest.mark.parametrize(("tag", "kind", "size"), [(1009, 4, 0xFFFF_0000), (5009, 5, 6 << 30)])
def test_the_size_of_the_files_is_one_of_two_numbers(tag: int, kind: int, size: int) -> None:
    store = b"large\x001\x002\0" + size.to_bytes(4 if kind == 4 else 8, "big")
    rows = [(1000, 6, 0), (1001, 6, 6), (1002, 6, 8), (tag, kind, 10)]
    entries = b"".join(struct.pack(">IIII", *row, 1) for row in rows)
    with sqlite3.connect(":memory:") as made:
        made.execute("CREATE TABLE Packages (blob BLOB)")
        made.execute("INSERT INTO Packages VALUES (?)", [struct.pack(">II", 4, len(store)) + entries + store])
        assert packages(made.serialize()) == (Rpm("large", "1-2", None, None, size),)


@pytest.mark.parametrize("name", ["rpmdb.sqlite", "Packages"])
def test_a_database_that_is_cut_short_is_not_read(name: str) -> None:
    data = database(name)
    assert packages(data[: len(data) // 2 + 1]) is None


@pytest.mark.parametrize("data", [b"", b"RpmP" + bytes(4096), bytes(8192), b"SQLite format 3\0" + bytes(4096)])
def test_other_files_are_not_read(data: bytes) -> None:
    assert packages(data) is None


def test_a_chain_of_pages_without_an_end_is_not_read() -> None:
    data = bytearray(database("Packages"))
    size = 4096
    for start in range(0, len(data), size):
        if data[start + 25] == 7:  # a page of a large value: it is followed by itself
            data[start + 16 : start + 20] = (start // size).to_bytes(4, "little")
    assert packages(bytes(data)) is None


def test_a_query_of_the_image_itself_ends() -> None:
    with sqlite3.connect(":memory:") as made:
        made.execute(
            "CREATE VIEW Packages AS WITH RECURSIVE n(blob) AS (SELECT 1 UNION ALL SELECT blob + 1 FROM n) "
            "SELECT * FROM n"
        )
        assert packages(made.serialize()) is None
