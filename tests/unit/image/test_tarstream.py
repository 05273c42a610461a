"""Tars are read as tarfile writes them, and damaged ones are refused."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import IntegrityError
from envkit.image.tarstream import BLOCK, Entry, Kind, Source, entries

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=150)


def tar(*rows: tuple[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as made:
        for name, content in rows:
            entry = tarfile.TarInfo(name)
            entry.size, entry.uid, entry.mtime = len(content), 70_000, 1_700_000_000
            made.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def read(data: bytes) -> list[tuple[Entry, bytes]]:
    source = Source(io.BytesIO(data))
    return [(entry, b"".join(source.pieces(entry.size))) for entry in entries(source)]


@given(st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=5), st.sampled_from([1, 2]))
def test_what_tarfile_writes_is_read(rows: list[tuple[str, bytes]], kind: int) -> None:
    found = read(tar(*rows, kind=(tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)[kind]))
    assert [(entry.name, content) for entry, content in found] == rows
    assert all((entry.uid, entry.mtime, entry.kind) == (70_000, 1_700_000_000, Kind.FILE) for entry, _ in found)


def test_content_that_is_not_read_is_skipped() -> None:
    source = Source(io.BytesIO(tar(("a", b"x" * 5000), ("b", b"y"))))
    assert [entry.name for entry in entries(source)] == ["a", "b"]


@given(st.integers(0, 3 * BLOCK - 1), st.integers(1, 255))
def test_a_changed_header_is_never_read_as_another(place: int, change: int) -> None:
    whole = tar(("a", b"x" * 600))
    data = bytearray(whole)
    data[place] ^= change
    try:
        found = read(bytes(data))
    except IntegrityError:
        return
    assert [(entry.name, entry.size) for entry, _ in found] == [("a", 600)]


@pytest.mark.parametrize("size", [0, 100, 512, 1000, 1536])
def test_a_cut_tar_is_refused(size: int) -> None:
    with pytest.raises(IntegrityError, match="ends after"):
        read(tar(("a", b"x" * 600))[:size])


def test_padding_up_to_the_limit_is_read() -> None:
    """A tape's record of any real size may follow the end."""
    assert [entry.name for entry, _ in read(tar(("a", b"x")) + bytes(1 << 20))] == ["a"]


def test_padding_without_end_is_refused() -> None:
    """A file with holes has gigabytes of zeros that cost nothing to send and seconds to read."""
    with pytest.raises(IntegrityError, match="more than 64 MiB of padding"):
        read(tar(("a", b"x")) + bytes(65 << 20))


def test_what_follows_the_end_is_refused() -> None:
    with pytest.raises(IntegrityError, match="goes on after its end"):
        read(tar(("a", b"x")) + tar(("b", b"y")))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("x", b"9999999 path=b\n", "damaged pax header"),
        ("x", b"garbage", "damaged pax header"),
        ("x", b"12 path=\0\0\n\n", "name with a zero byte"),
        ("x", b"8 path=\n", "empty name"),
        ("L", b"\0", "empty name"),
        ("x", b"22 GNU.sparse.major=1\n", "unknown kind"),
        ("x", b"13 size=-100\n", "invalid size for 'a': -100"),
        ("x", b"11 size=ab\n", "invalid size for 'a': 'ab'"),
        ("g", b"garbage", "damaged pax header"),
        ("g", b"10 path=b\n", "global header with 'path'"),
        ("g", b"14 linkpath=b\n", "global header with 'linkpath'"),
        ("g", b"13 size=1024\n", "global header with 'size'"),
        ("g", b"8 uid=1\n", "global header with 'uid'"),
        ("g", b"22 GNU.sparse.major=1\n", "global header with 'GNU.sparse.major'"),
    ],
)
def test_hostile_headers_are_refused(field: str, value: bytes, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        read(_raw("h", field, value) + tar(("a", b"")))


def test_the_global_header_of_git_archive_changes_nothing() -> None:
    found = read(_raw("pax_global_header", "g", b"16 comment=abc1\n") + tar(("a", b"x")))
    assert [(entry.name, content) for entry, content in found] == [("a", b"x")]


NAMED, NOTE = ("x", b"10 path=b\n"), b"13 comment=c\n"


@pytest.mark.parametrize(
    "headers",
    [
        (NAMED, ("x", NOTE)),
        (NAMED, ("g", NOTE)),
        (NAMED, ("L", b"c\0")),
        (("L", b"c\0"), NAMED),
        (("L", b"c\0"), ("L", b"d\0")),
        (("L", b"c\0"), ("g", NOTE)),
    ],
)
def test_headers_that_readers_combine_differently_are_refused(headers: tuple[tuple[str, bytes], ...]) -> None:
    with pytest.raises(IntegrityError, match="several extended headers for one entry"):
        read(b"".join(_raw("h", kind, content) for kind, content in headers) + tar(("a", b"x")))


def test_a_long_name_and_a_long_target_are_one_header() -> None:
    found = read(_raw("h", "K", b"to\0") + _raw("h", "L", b"from\0") + _raw("a", "2", b"") + tar())
    assert [(entry.name, entry.target) for entry, _ in found] == [("from", "to")]


def test_a_folder_with_contents_is_refused() -> None:
    with pytest.raises(IntegrityError, match="invalid size for 'a/': 512 bytes"):
        read(_raw("a/", "0", _raw("b", "0", b"")) + tar())


def test_huge_headers_are_refused_unread() -> None:
    with pytest.raises(IntegrityError, match="header of 8589934591 bytes"):
        read(_raw("h", "x", b"", size=8**11 - 1))


def test_sparse_files_are_refused() -> None:
    with pytest.raises(IntegrityError, match="unknown kind"):
        read(_raw("s", "S", b"", size=0))


def _raw(name: str, kind: str, content: bytes, *, size: int | None = None) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind.encode(), len(content) if size is None else size
    header = entry.tobuf(tarfile.USTAR_FORMAT)
    return header + content + b"\0" * (-len(content) % BLOCK)
