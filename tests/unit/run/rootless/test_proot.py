"""Whom a run through proot is on this machine."""

import os
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.run.rootless import proot
from envkit.run.rootless.cell import Inside
from envkit.run.rootless.owners import MOST_ID, host_id
from envkit.run.rootless.stack import Stack
from envkit.run.rootless.user import User

SHIFT = 2**31
ROOT, OTHER = (User(uid=one, gid=one, home="/") for one in (0, 1000))


def outside(monkeypatch: pytest.MonkeyPatch, user: User, *, euid: int = 0, guarded: bool, shift: int) -> int | None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr(proot, "host_shift", lambda: shift)
    found = proot.outside_of(user, guarded=guarded)
    assert found.uid == found.gid
    return found.uid


@pytest.mark.parametrize(("user", "shift", "uid"), [
    (ROOT, SHIFT, SHIFT), (OTHER, SHIFT, SHIFT + 1000), (ROOT, 0, 65534), (OTHER, 0, 1000),
])  # fmt: skip
def test_root_becomes_the_shifted_user_of_the_image(
    monkeypatch: pytest.MonkeyPatch, user: User, shift: int, uid: int
) -> None:
    assert outside(monkeypatch, user, guarded=True, shift=shift) == uid


@pytest.mark.parametrize("user", [ROOT, OTHER])
def test_a_run_that_landlock_does_not_guard_owns_no_file_of_the_cached_layers(
    monkeypatch: pytest.MonkeyPatch, user: User
) -> None:
    uid = outside(monkeypatch, user, guarded=False, shift=SHIFT)
    assert uid is not None
    assert 0 < uid < host_id(0, SHIFT) < host_id(MOST_ID, SHIFT)  # the IDs of what layers hold
    assert outside(monkeypatch, user, guarded=False, shift=0) == 65534


def test_another_user_than_root_stays_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outside(monkeypatch, ROOT, euid=1000, guarded=False, shift=0) is None


def test_a_folder_that_proot_cannot_be_told_is_refused(tmp_path: Path) -> None:
    """Its /tmp was then the image's own, which cannot be written."""
    folder = tmp_path / "a:b"
    folder.mkdir()
    with pytest.raises(EnvironmentProblem, match="proot cannot use a path with a colon"):
        proot.prepare(folder, Stack(layers=()), Inside(files={}, user=ROOT, env={}, workdir="", gpus=None))


@pytest.mark.parametrize(
    ("landlock", "folder", "why"),
    [
        (0, "/srv", "this kernel has no Landlock for it"),
        (2, "/srv", "this kernel has no Landlock for it"),  # a run can empty files
        (3, "/tmp/data", "every run may write below /tmp"),
        (3, "/dev/shm", "every run may write below /dev/shm"),
    ],
)
def test_data_are_refused_where_nothing_keeps_a_run_from_writing_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landlock: int, folder: str, why: str
) -> None:
    monkeypatch.setattr(proot, "landlock_version", lambda: landlock)
    run = Inside(files={}, user=ROOT, env={}, workdir="", gpus=None, data=Path(folder))
    with pytest.raises(EnvironmentProblem, match=f"proot cannot make {folder} read-only: {why}") as caught:
        proot.prepare(tmp_path, Stack(layers=()), run)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("use another runner (--runner bubblewrap, docker or podman)")


def test_landlock_guards_what_no_run_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp and /dev/shm are every run's; before its third version, Landlock lets a run empty any file it owns."""
    monkeypatch.setattr(proot, "_OF_ALL_RUNS", (str(tmp_path / "shared"),))
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("shared/deep")
    for version, name, guarded in (
        (3, "own", True), (2, "own", False), (0, "own", False), (7, "shared", False), (7, "link", False),
        (7, "shared/deep/new", False),
    ):  # fmt: skip
        monkeypatch.setattr(proot, "landlock_version", lambda found=version: found)
        assert proot.is_guarded(tmp_path / name) is guarded, (version, name)
