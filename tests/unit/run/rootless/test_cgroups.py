"""Control groups are made where the system lets them be, in folders laid out as the kernel's are."""

import errno
import os
from pathlib import Path

import pytest

from envkit.run.model import RunLimits
from envkit.run.rootless.cgroups import Group, make

V1_MOUNTS = (
    "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "31 25 0:27 /outer /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
    "32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
V2_MOUNTS = "30 25 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
LIMITS = RunLimits(memory_mb=64, pids=20)


def system(root: Path, mounts: str, groups: str, *folders: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(groups)
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return root


def test_version_1_has_a_group_for_each_controller(tmp_path: Path) -> None:
    root = system(
        tmp_path, V1_MOUNTS, "4:memory:/a/b\n8:pids:/outer/c\n0::/\n",
        "sys/fs/cgroup/memory/a/b", "sys/fs/cgroup/pids/c",
    )  # fmt: skip
    group = make(LIMITS, root=root)
    assert group.unlimited == ()
    assert group.folders["memory"].parent == root / "sys/fs/cgroup/memory/a/b"
    assert group.folders["pids"].parent == root / "sys/fs/cgroup/pids/c"
    assert (group.folders["pids"] / "pids.max").read_text() == "20"
    group.join(77)
    assert (group.folders["pids"] / "cgroup.procs").read_text() == "77"
    assert (group.folders["memory"] / "cgroup.procs").read_text() == "77"


def test_groups_of_ended_runs_go_whatever_limits_they_had(tmp_path: Path) -> None:
    old = ("sys/fs/cgroup/memory/a/envkit-0-1-0-aa", "sys/fs/cgroup/pids/c/envkit-0-1-0-aa")
    root = system(tmp_path, V1_MOUNTS, "4:memory:/a\n8:pids:/outer/c\n0::/\n", *old)
    made = make(RunLimits(pids=20), root=root)
    assert not [folder for folder in old if (root / folder).exists()]
    assert list(made.folders) == ["pids"]


def test_groups_of_another_container_stay(tmp_path: Path) -> None:
    other = "sys/fs/cgroup/pids/c/envkit-4026531836-1-0-aa"
    root = system(tmp_path, V1_MOUNTS, "8:pids:/outer/c\n0::/\n", other)
    make(RunLimits(pids=20), root=root)
    assert (root / other).exists()


@pytest.mark.parametrize(("number", "waits"), [(errno.EROFS, 0), (errno.EBUSY, 20)])
def test_only_a_busy_group_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, waits: int
) -> None:
    """A container has all groups read-only, and each run in it took a second longer for each of version 1's trees."""
    root = system(tmp_path, V1_MOUNTS, "8:pids:/outer/c\n0::/\n", "sys/fs/cgroup/pids/c")
    waited: list[float] = []

    def refuse(path: Path, **_: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "rmdir", refuse)
    monkeypatch.setattr("time.sleep", waited.append)
    assert make(RunLimits(pids=20), root=root).unlimited == ("pids",)
    assert len(waited) == waits


def version_2(root: Path) -> Path:
    """A system on which one ancestor enables two controllers and the one above it all three."""
    system(root, V2_MOUNTS, "0::/user/app/own\n", "sys/fs/cgroup/user/app/own")
    (root / "sys/fs/cgroup/user/app/cgroup.subtree_control").write_text("memory pids\n")
    (root / "sys/fs/cgroup/user/cgroup.subtree_control").write_text("cpu memory pids\n")
    (root / "sys/fs/cgroup/cgroup.subtree_control").write_text("cpu memory pids\n")
    return root


def test_version_2_uses_the_nearest_group_that_gives_the_limits(tmp_path: Path) -> None:
    group = make(LIMITS, root=version_2(tmp_path))
    assert group.unlimited == ()
    assert set(group.folders) == {"memory", "pids"}
    assert {folder.parent for folder in group.folders.values()} == {tmp_path / "sys/fs/cgroup/user/app"}
    assert (group.folders["memory"] / "memory.max").read_text() == str(64 << 20)
    assert (group.folders["memory"] / "memory.swap.max").read_text() == "0"


def test_version_2_has_one_group_for_all_limits(tmp_path: Path) -> None:
    group = make(RunLimits(memory_mb=64, pids=20, cpus=1.5), root=version_2(tmp_path))
    assert group.unlimited == ()
    assert {folder.parent for folder in group.folders.values()} == {tmp_path / "sys/fs/cgroup/user"}
    assert (group.folders["cpu"] / "cpu.max").read_text() == "150000 100000"


def test_a_limit_that_fails_leaves_the_group_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path.name == "memory.max":
            raise OSError
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    # As the kernel, which removes a group with its files.
    monkeypatch.setattr(Path, "rmdir", lambda path: path.rename(tmp_path / "removed"))
    group = make(LIMITS, root=version_2(tmp_path))
    assert group.unlimited == ("memory",)
    group.join(77)
    assert (group.folders["pids"] / "cgroup.procs").read_text() == "77"


@pytest.mark.parametrize(("mounts", "groups"), [("", ""), (V2_MOUNTS, "0::/own\n"), ("garbage\n", "x")])
def test_what_cannot_be_limited_is_told(tmp_path: Path, mounts: str, groups: str) -> None:
    group = make(LIMITS, root=system(tmp_path, mounts, groups, "sys/fs/cgroup/own"))
    assert group.unlimited == ("pids", "memory")
    assert not group.out_of_memory()
    group.join(1)
    group.remove()


@pytest.mark.parametrize(
    ("name", "text", "killed"),
    [
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 0\n", False),
        ("memory.events", "low 0\noom 1\noom_kill 1\n", True),
        ("memory.events", "low 0\noom 1\noom_kill 0\n", False),
    ],
)
def test_kills_for_memory_are_counted(tmp_path: Path, name: str, text: str, killed: bool) -> None:
    (tmp_path / name).write_text(text)
    assert Group(folders={"memory": tmp_path}, unlimited=()).out_of_memory() is killed
