import struct
from collections.abc import Iterator

import pytest

from envkit.evidence import elf
from envkit.ground.errors import IntegrityError
from tests.support.torch_wheels import fat_binary, fat_library, library


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [17, 5000, 1 << 20])
def test_the_first_segment_ends_where_its_header_says(size: int) -> None:
    assert len(elf.first_segment("a.so", pieces(library(filling=9000), size))) == 4096 + 32


def test_symbol_versions_are_found_by_the_hash_of_their_names() -> None:
    segment = elf.first_segment("a.so", iter([library(glibc="2.17", glibcxx="3.4.19")]))
    assert elf.symbol_versions(segment) == ("2.17", "3.4.19")


def test_a_hash_among_other_bytes_is_no_symbol_version() -> None:
    assert elf.symbol_versions(b"\0" * 8 + struct.pack("<I", elf._hash("GLIBC_2.50")) + b"\xff" * 40) == (None, None)


def test_the_hash_is_that_of_the_specification() -> None:
    assert elf._hash("GLIBC_2.2.5") == 0x09691A75


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"MZ" + b"\0" * 100, "not an ELF file"),
        (b"\x7fELF\1\1" + b"\0" * 100, "not a 64-bit little-endian"),
        (b"\x7fELF\2\2" + b"\0" * 100, "not a 64-bit little-endian"),
        (library()[:2000], "cut short"),
        (b"", "not an ELF file"),
    ],
)
def test_other_files_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        elf.first_segment("a.so", iter([data]))


@pytest.mark.parametrize("size", [13, 100, 1 << 20])
def test_machine_code_and_ptx_are_told_apart(size: int) -> None:
    code = elf.gpu_code("a.so", pieces(fat_library("sm_75 sm_90 compute_90"), size), least=13)
    assert (code.machine, code.ptx, code.binaries) == (("7.5", "9.0"), ("9.0",), 13)


def test_more_binaries_are_read_until_every_wanted_capability_was_met() -> None:
    data = library() + fat_binary((2, 100)) * 13 + fat_binary((2, 80)) + fat_binary((2, 75))
    code = elf.gpu_code("a.so", iter([data]), least=13, wanted=frozenset({"10.0", "8.0"}))
    assert (code.machine, code.binaries) == (("8.0", "10.0"), 14)


def test_no_more_binaries_are_read_than_allowed() -> None:
    code = elf.gpu_code("a.so", iter([fat_binary((2, 100)) * 30]), least=2, most=5, wanted=frozenset({"8.0"}))
    assert code.binaries == 5


@pytest.mark.parametrize(
    "data",
    [
        fat_binary((2, 90), cut=1000),
        fat_binary((2, 90))[:60],
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40) + b"\0" * 99,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 96) + struct.pack("<HHIQ12xI", 2, 1, 0, 0, 90) + b"\0" * 99,
    ],
)
def test_a_length_that_points_outside_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="is refused: "):
        elf.gpu_code("a.so", iter([data]), least=13)


def test_the_magic_number_elsewhere_is_no_fat_binary() -> None:
    code = elf.gpu_code("a.so", iter([b"\x50\xed\x55\xba" + b"\1" * 40 + fat_binary((1, 90))]), least=1)
    assert (code.ptx, code.offset) == (("9.0",), 44)


def test_no_more_is_read_than_holds_the_symbol_versions() -> None:
    """A linker that keeps code in the first segment makes it large; the versions stand before the code."""
    begin = library(filling=20 << 20)
    head = bytearray(begin)
    struct.pack_into("<Q", head, 64 + 32, len(begin))  # the segment's length in the file
    read = 0

    def stream() -> Iterator[bytes]:
        nonlocal read
        for at in range(0, len(head), 1 << 16):
            read += 1 << 16
            yield bytes(head[at : at + (1 << 16)])

    assert elf.symbol_versions(elf.first_segment("x", stream())) == ("2.28", "3.4.22")
    assert read <= 3 << 16
