"""Databases that rpm 4.18 and Berkeley DB 5.3 wrote, with three packages; one header fills several pages."""

import gzip
import sqlite3
from pathlib import Path

import pytest

from envkit.image.rpm import Rpm, packages

PACKAGES = (
    Rpm("epochal", "4:2.0-1.el9", "noarch", "GPLv2+ and LGPLv2+"),
    Rpm("many", "1-1", "noarch", "BSD"),
    Rpm("plain", "1.2-3.el9", "noarch", "MIT"),
)


def database(name: str) -> bytes:
    return gzip.decompress((Path(__file__).with_name("rpm") / f"{name}.gz").read_bytes())


@pytest.mark.parametrize("name", ["rpmdb.sqlite", "Packages"])
def test_both_kinds_of_database(name: str) -> None:
    assert packages(database(name)) == PACKAGES


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
