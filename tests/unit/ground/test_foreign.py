from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.ground import foreign
from envkit.ground.errors import UsageError


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (pipe, "is a pipe, not a regular file"),
        (bound_socket, "is a socket, not a regular file"),
        (link_to("/dev/zero"), "is a device, not a regular file"),
        (link_to("/dev/tty"), "is a device, not a regular file"),
        (Path.mkdir, "is a directory"),
        (link_to("loop"), "too many levels of symbolic links"),
        (link_to("missing"), "no such file or directory"),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], what: str) -> None:
    path = tmp_path / "loop"
    make(path)
    with pytest.raises(UsageError) as caught:
        foreign.read(path)
    assert caught.value.message == f"{path}: {what}"


def test_a_pipe_of_the_shell_is_read_by_its_name_there() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"torch\n")
        os.close(writing)
        assert foreign.text(Path(f"/dev/fd/{reading}")) == "torch\n"
    finally:
        os.close(reading)


def test_a_stream_of_the_shell_is_limited() -> None:
    with Path("/dev/zero").open("rb") as endless, pytest.raises(UsageError, match="larger than 1048576 bytes"):
        foreign.read(Path(f"/dev/fd/{endless.fileno()}"))


def test_the_null_device_is_an_empty_file() -> None:
    assert foreign.text(Path("/dev/null")) == ""


def test_a_name_of_the_shell_does_not_count_below_a_root(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is outside of the folder"):
        foreign.read(Path("/dev/stdin"), root=tmp_path)


@pytest.mark.requirement("R11")
@pytest.mark.parametrize(
    "name", ["inside", "sub/up", "absolute", "through", "sub/../file", "./file", "sub/./../file", "chain"]
)
def test_links_inside_the_root_are_followed(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "file").write_text("content")
    (root / "inside").symlink_to("file")
    (root / "sub" / "up").symlink_to("../file")
    (root / "absolute").symlink_to(root / "file")
    (root / "folder").symlink_to("sub")
    (root / "through").symlink_to("folder/up")
    (root / "chain").symlink_to("inside")
    assert foreign.text(root / name, root=root) == "content"


def test_the_root_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("content")
    (tmp_path / "alias").symlink_to("root")
    assert foreign.text(tmp_path / "alias" / "file", root=tmp_path / "alias") == "content"


@pytest.mark.requirement("R11")
@pytest.mark.parametrize(
    "target", ["../secret", "/etc/passwd", "sub/../../secret", "out/secret", "../rooted/secret", "/dev/zero", "hop"]
)
def test_a_link_out_of_the_root_is_refused(tmp_path: Path, target: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "rooted").mkdir()  # its name begins with the root's
    (tmp_path / "secret").write_text("password")
    (tmp_path / "rooted" / "secret").write_text("password")
    (root / "out").symlink_to("..")
    (root / "hop").symlink_to("../secret")
    path = root / "file"
    path.symlink_to(target)
    with pytest.raises(UsageError) as caught:
        foreign.read(path, root=root)
    assert caught.value.message == f"{path} is a link out of the folder {root}"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/../../secret"])
def test_a_path_out_of_the_root_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    with pytest.raises(UsageError, match="is outside of the folder"):
        foreign.read(tmp_path / "root" / name, root=tmp_path / "root")


@pytest.mark.parametrize("name", ["file", "folder/file"])
def test_without_links_none_is_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("content")
    (tmp_path / "file").symlink_to("real/file")
    (tmp_path / "folder").symlink_to("real")
    with pytest.raises(UsageError, match="is a symbolic link"):
        foreign.read(tmp_path / name, root=tmp_path, links=False)
    assert foreign.read(tmp_path / "real" / "file", root=tmp_path, links=False) == b"content"


def test_a_file_exchanged_for_a_link_meanwhile_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("password")
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    check = foreign._check_kind

    def exchanged(*args: Any) -> None:
        check(*args)
        if not (root / "file").is_symlink():
            (root / "file").unlink()
            (root / "file").symlink_to("../secret")

    monkeypatch.setattr(foreign, "_check_kind", exchanged)
    with pytest.raises(UsageError, match="too many levels of symbolic links"):
        foreign.read(root / "file", root=root)


@pytest.mark.requirement("R61")
def test_a_stream_has_no_limit_of_size_but_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * (2 << 20))
    with foreign.stream(tmp_path / "log") as file:
        assert file.peek(1)[:1] == b"x"
        assert len(file.read()) == 2 << 20
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a pipe"), foreign.stream(tmp_path / "pipe"):
        pass


def test_a_large_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    before = time.process_time()
    with pytest.raises(UsageError, match="larger than 1048576 bytes"):
        foreign.read(path)
    assert time.process_time() - before < 1


def test_a_file_that_is_cut_while_it_is_open_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with foreign.opened(path, root=tmp_path) as file:
        os.truncate(path, 100)
        assert len(file.read_at(0, 8192)) == 100
        assert file.read_at(4096, 8) == b""
        assert file.status.st_size == 100


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"\xef\xbb\xbfa: 1\n", "a: 1\n"),
        ("größe\r\n".encode(), "größe\r\n"),
        ("größe\r\n".encode("utf-16"), "größe\r\n"),
        (b"\xff\xfe" + "größe".encode("utf-16-le"), "größe"),
        (b"\xfe\xff" + "größe".encode("utf-16-be"), "größe"),
        (b"\xff\xfe", ""),
    ],
)
def test_texts_are_utf_8_or_utf_16_with_a_mark(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "file").write_bytes(data)
    assert foreign.text(tmp_path / "file") == text


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("torch\n".encode("utf-16-le"), ":1:1: the file is UTF-16 without a byte order mark"),
        ("torch\n".encode("utf-16-be"), ":1:1: the file is UTF-16 without a byte order mark"),
        ("torch\n".encode("utf-16")[:-1], ":1:6: byte 0x0a is not UTF-16"),
        (b"\xff\xfea\0\n\0\0\xd8", ":2:1: byte 0x00 is not UTF-16"),
        (b"a\nb\xff", ":2:2: byte 0xff is not UTF-8"),
        (b"gr\xf6sse", ":1:3: byte 0xf6 is not UTF-8"),
        (b"\xed\xa0\x80", ":1:1: byte 0xed is not UTF-8"),
        (b"\n" * 100_001, ":100001:1: more than 100000 lines"),
        (b"x" * (1 << 20) + b"x", ":1:1: larger than 1048576 bytes"),
    ],
)
def test_other_texts_are_refused_with_their_place(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        foreign.text(path)
    assert caught.value.message == f"{path}{what}"
    assert caught.value.hint


def test_a_budget_is_one_for_all_files() -> None:
    budget = foreign.Budget(100, "100 bytes of files")
    budget.spend(60, "one")
    budget.spend(40, "two")
    with pytest.raises(UsageError, match=r"^three: more than 100 bytes of files$"):
        budget.spend(1, "three")


def ours(data: bytes) -> bool:
    return data.startswith(b"ours")


@pytest.mark.requirement("R57")
def test_a_file_below_a_folder_is_made_with_its_folders_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    assert foreign.write(path, b"ours 1", root=tmp_path, is_ours=ours)
    path.chmod(0o640)
    assert foreign.write(path, b"ours 2", root=tmp_path, is_ours=ours)
    assert not foreign.write(path, b"ours 2", root=tmp_path, is_ours=ours)
    assert path.read_bytes() == b"ours 2"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [item.name for item in path.parent.iterdir()] == ["file"]


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("name", ["file", "folder/file", "dangling", "folder/below/file"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    home.mkdir()
    root.mkdir()
    (home / "file").write_text("ours, the user's")
    (root / "file").symlink_to(home / "file")
    (root / "folder").symlink_to(home)
    (root / "dangling").symlink_to(home / "new")
    with pytest.raises(UsageError, match="is a symbolic link") as caught:
        foreign.write(root / name, b"ours", root=root, is_ours=ours, hint="rm")
    assert caught.value.hint == "rm"
    assert {item.name: item.read_text() for item in home.iterdir()} == {"file": "ours, the user's"}


def test_a_file_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    with pytest.raises(UsageError, match="was not written by envkit"):
        foreign.write(path, b"ours", root=tmp_path, is_ours=ours)
    assert path.read_text() == "theirs"


@pytest.mark.parametrize(("make", "what"), [(pipe, "a pipe"), (bound_socket, "a socket"), (Path.mkdir, "a folder")])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None], what: str) -> None:
    make(tmp_path / "file")
    with pytest.raises(UsageError, match=f"is {what}, not a file"):
        foreign.write(tmp_path / "file", b"ours", root=tmp_path, is_ours=ours)


def test_nothing_is_written_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(UsageError, match="is outside of the folder"):
        foreign.write(tmp_path / "root" / ".." / "file", b"ours", root=tmp_path / "root", is_ours=ours)


@pytest.mark.requirement("R57")
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"ours, old")

    def full(descriptor: int) -> None:
        raise OSError(28, f"No space left on device {descriptor}")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        foreign.write(path, b"ours, new", root=tmp_path, is_ours=ours)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"ours, old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("..")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("missing", "out/x", "deep/er", "."):
        with pytest.raises(UsageError):
            foreign.read(tmp_path / name, root=tmp_path)
    foreign.write(tmp_path / "deep" / "er" / "file", b"ours", root=tmp_path, is_ours=ours)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
