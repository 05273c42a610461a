"""A package's own bytecode: what is kept, and with which header."""

import marshal
from importlib.util import MAGIC_NUMBER

import pytest

from envkit.assemble.bytecode import dated
from envkit.image.spec import MTIME

CODE = marshal.dumps(compile("A = 1", "a.py", "exec"))


def header(flags: int, second: int, third: int) -> bytes:
    return MAGIC_NUMBER + b"".join(word.to_bytes(4, "little") for word in (flags, second, third))


def test_the_time_becomes_that_of_an_images_files() -> None:
    assert dated(header(0, 1_735_689_600, 6) + CODE, 6) == header(0, MTIME, 6) + CODE


@pytest.mark.parametrize("flags", [1, 3])
def test_bytecode_by_hash_stays_as_it_is(flags: int) -> None:
    made = header(flags, 11, 12) + CODE
    assert dated(made, 6) == made


@pytest.mark.parametrize(
    "made",
    [
        header(0, 1, 7) + CODE,
        header(0, 1, 6),
        b"",
        header(2, 1, 6) + CODE,
        header(4, 1, 6) + CODE,
        b"A = 1\n" * 9,
    ],
    ids=["another source", "no code", "empty", "a flag alone", "unknown flags", "no bytecode"],
)
def test_bytecode_of_something_else_is_not_kept(made: bytes) -> None:
    assert dated(made, 6) is None
