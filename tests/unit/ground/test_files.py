from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from envkit.ground.files import room, write_atomic


@pytest.mark.requirement("R57")
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_the_mode_of_an_old_file_stays_and_a_new_one_follows_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"x")
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        write_atomic(old, b"y")
        write_atomic(new, b"y")
    finally:
        os.umask(before)
    assert old.stat().st_mode & 0o777 == 0o640
    assert new.stat().st_mode & 0o777 == 0o640


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"x")
    link.symlink_to(target)
    write_atomic(link, b"y")
    assert link.is_symlink()
    assert target.read_bytes() == b"y"


@pytest.mark.requirement("R57")
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, f"No space left on device {descriptor}")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_atomic(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to an open file names no file, so all that was said was: No space left on device."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "envkit.lock"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(path, b"new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["envkit.lock"]


@pytest.mark.parametrize(
    ("inodes", "free_inodes", "text"),
    [(100, 50, "1.2 GB free"), (100, 0, "1.2 GB free, but no inode for another file"), (0, 0, "1.2 GB free")],
)
def test_what_is_free_counts_inodes(
    inodes: int, free_inodes: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def statvfs(path: object) -> os.statvfs_result:
        seen.append(path)
        return os.statvfs_result((4096, 4096, 0, 0, 292969, inodes, free_inodes, free_inodes, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert room(tmp_path / "absent" / "deeper") == text
    assert seen == [tmp_path]
