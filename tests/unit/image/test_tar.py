import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.image import tar

_PART = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=60).filter(
    lambda part: part not in (".", "..")
)
_PATH = st.lists(_PART, min_size=1, max_size=9).map("/".join)


def _read(header: bytes) -> tarfile.TarInfo:
    with tarfile.open(fileobj=io.BytesIO(header + bytes(2 * tar.BLOCK)), mode="r:") as archive:
        return next(iter(archive))


@given(_PATH, st.integers(0, 1 << 35), st.integers(0, 1 << 32), st.sampled_from([0o755, 0o644]))
def test_a_reader_gets_back_what_the_header_says(path: str, size: int, mtime: int, mode: int) -> None:
    entry = _read(tar.header(path, kind=tar.FILE, mode=mode, mtime=mtime, size=size))
    assert (entry.name, entry.size, entry.mtime, entry.mode) == (path, size, mtime, mode)
    assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")


@given(_PATH, st.integers(0, 1 << 32), st.integers(0, 1 << 32))
def test_owners_are_kept_however_large_their_numbers_are(path: str, user: int, group: int) -> None:
    entry = _read(tar.header(path, kind=tar.FOLDER, mode=0o755, mtime=0, owner=(user, group)))
    assert (entry.name, entry.uid, entry.gid) == (path, user, group)


@given(_PATH, _PATH)
def test_a_link_keeps_its_target(path: str, target: str) -> None:
    entry = _read(tar.header(path, kind=tar.SYMLINK, mode=0o777, mtime=0, target=target))
    assert entry.issym()
    assert (entry.name, entry.linkname) == (path, target)


@pytest.mark.parametrize("length", [1, 98, 99, 100, 101, 154, 155, 156, 254, 255, 256, 257, 400])
def test_folders_of_any_depth(length: int) -> None:
    path = ("d" * 49 + "/") * (length // 50) + "e" * (length % 50 or 1)
    entry = _read(tar.header(path, kind=tar.FOLDER, mode=0o755, mtime=0))
    assert entry.isdir()
    assert entry.name == path


def test_a_plain_header_is_that_of_the_standard_library() -> None:
    entry = tarfile.TarInfo("opt/env/lib/file.py")
    entry.size, entry.mode, entry.mtime = 1234, 0o644, 315532800
    ours = tar.header(entry.name, kind=tar.FILE, mode=0o644, mtime=315532800, size=1234)
    assert ours == entry.tobuf(tarfile.PAX_FORMAT)


def test_a_long_path_needs_no_record_where_its_folders_fit_the_prefix() -> None:
    assert len(tar.header("a" * 100 + "/" + "b" * 100, kind=tar.FILE, mode=0o644, mtime=0)) == tar.BLOCK
    assert len(tar.header("a" * 101, kind=tar.FILE, mode=0o644, mtime=0)) == 3 * tar.BLOCK


@given(st.integers(0, 100).map(lambda blocks: blocks * tar.BLOCK))
def test_an_archive_ends_on_a_whole_record(size: int) -> None:
    ending = tar.end(size)
    assert len(ending) >= 2 * tar.BLOCK
    assert (size + len(ending)) % 10240 == 0
    assert not any(ending)
