from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground import store
from envkit.ground.store import free_space, write_atomic


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
    [(100, 50, "1.2 GB free"), (100, 0, "1.2 GB free, but no free inodes"), (0, 0, "1.2 GB free")],
)
def test_what_is_free_counts_inodes(
    inodes: int, free_inodes: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def statvfs(path: object) -> os.statvfs_result:
        seen.append(path)
        return os.statvfs_result((4096, 4096, 0, 0, 292969, inodes, free_inodes, free_inodes, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert free_space(tmp_path / "absent" / "deeper") == text
    assert seen == [tmp_path]


def test_a_locked_folder_is_not_swept_and_an_abandoned_one_is(tmp_path: Path) -> None:
    left, elsewhere = tmp_path / "left", tmp_path / "elsewhere"
    (left / "closed").mkdir(parents=True)
    (left / "closed").chmod(0)
    (tmp_path / "file").touch()
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    with store.fresh_folder(tmp_path, prefix=".made.", suffix=".tmp") as made:
        store.sweep([one for one in tmp_path.iterdir() if one != elsewhere])
        assert {one.name for one in tmp_path.iterdir()} == {made.name, "elsewhere", "link"}
        assert made.stat().st_mode & 0o777 == 0o700
    assert not made.exists()


def test_what_was_written_a_moment_ago_is_left_alone(tmp_path: Path) -> None:
    young, old = tmp_path / "young", tmp_path / "old"
    young.touch()
    old.touch()
    os.utime(old, (0, 0))
    store.sweep(tmp_path.iterdir(), idle_s=60)
    assert [one.name for one in tmp_path.iterdir()] == ["young"]


def test_the_folder_of_another_user_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    store.sweep(tmp_path.iterdir())
    assert (tmp_path / "left").exists()


def test_a_fresh_folder_that_another_process_sweeps_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = Path.mkdir, list[Path]()

    def swept_once(self: Path, mode: int) -> None:
        make(self, mode)
        made.append(self)
        if len(made) == 1:
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", swept_once)
    with store.fresh_folder(tmp_path) as folder:
        assert folder == made[1]


def test_a_folder_that_was_swept_between_its_opening_and_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, list[int]()

    def late(descriptor: int, kind: int) -> None:
        if not swept:
            swept.append(descriptor)
            for one in tmp_path.iterdir():
                one.rmdir()
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with store.fresh_folder(tmp_path) as folder:
        assert folder.is_dir()
    assert swept


def test_a_renamed_folder_in_the_making_stays(tmp_path: Path) -> None:
    with store.fresh_folder(tmp_path, mode=0o777) as folder:
        folder.rename(tmp_path / "final")
    assert (tmp_path / "final").is_dir()


def test_folders_without_any_permission_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    for name in ("a/b", "a"):
        (tmp_path / name).chmod(0)
    assert store.remove_tree(tmp_path / "a")


def test_a_folder_that_becomes_a_link_while_it_is_removed_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The permissions of all folders below the link's target were changed, by root those of /etc."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for folder in (outside, outside / "deep"):
        folder.chmod(0o755)
    (tmp_path / "run/sub").mkdir(parents=True)
    walk = os.fwalk

    def swapping(folder: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
        for row in walk(folder):
            if row[1] == ["sub"]:
                (tmp_path / "run/sub").rmdir()
                (tmp_path / "run/sub").symlink_to(outside)
            yield row

    monkeypatch.setattr(os, "fwalk", swapping)
    assert store.remove_tree(tmp_path / "run")
    assert (outside / "deep").stat().st_mode & 0o777 == 0o755
    assert outside.stat().st_mode & 0o777 == 0o755


def test_one_process_at_a_time_has_a_locked_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = store.lock_file(path)
    assert first is not None
    assert store.lock_file(path) is None
    path.unlink()  # its holder removes it: whoever opened it before must not believe in its lock
    second = store.lock_file(path)
    assert second is not None
    assert store.is_at(second, path)
    assert not store.is_at(first, path)
    os.close(first)
    os.close(second)


def test_without_locks_everybody_gets_them_and_nothing_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / "left").mkdir()
    with store.locked(tmp_path), store.fresh_folder(tmp_path) as folder:
        store.sweep(tmp_path.iterdir())
        assert {one.name for one in tmp_path.iterdir()} == {"left", folder.name}


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with store.replacing(path, durable=False) as stream:
            stream.write(b"half")
            assert len(list(tmp_path.glob(".file.*.tmp"))) == 1
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_one_message(number: int, tmp_path: Path) -> None:
    error = store.unusable(tmp_path, OSError(number, os.strerror(number)))
    assert error.message.startswith(f"disk full on {tmp_path} (")
    assert error.message.endswith(" GB free)")
    assert error.hint == store.LARGER_CACHE
    other = store.unusable(tmp_path, OSError(errno.EROFS, "Read-only file system"))
    assert (other.message, other.hint) == (f"{tmp_path} cannot be used: Read-only file system", store.OWN_CACHE)
