"""Create a control group for one run, if this process may, with limits on memory, processes and CPU time.

Version 1 has one tree per controller. Version 2 has a single tree, in which a group that contains processes cannot
limit its children, so an ancestor that already limits its children is used: the nearest of those with the most of the
needed controllers, because a process is in one group only. What cannot be limited is reported.
Source: Linux Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envkit.ground import identity
from envkit.run.model import RunLimits

# The kernel's own default (Documentation/scheduler/sched-bwc.rst).
_PERIOD_US = 100_000
_PREFIX = "envkit-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The control group of one run: controller -> folder. `unlimited` names the limits that could not be set."""

    folders: Mapping[str, Path]
    unlimited: tuple[str, ...]

    def join(self, pid: int) -> None:
        """Move a process into the group. Processes that it starts later are in the group too."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the group because it ran out of memory."""
        folder = self.folders.get("memory")
        if folder is None:
            return False
        for name in ("memory.events", "memory.oom_control"):  # version 2, version 1
            with contextlib.suppress(OSError):
                return _count((folder / name).read_text(), "oom_kill") > 0
        return False

    def remove(self) -> None:
        """Remove the group. Its processes must have ended."""
        for folder in set(self.folders.values()):
            _remove(folder)


def make(limits: RunLimits, *, root: Path = Path("/")) -> Group:
    """Create a group with as many of these limits as possible. `root` is the folder that contains /proc."""
    hierarchies = _hierarchies(_text(root / "proc/self/mountinfo"), _text(root / "proc/self/cgroup"))
    me = identity.current()
    name = f"{_PREFIX}{_namespace(root)}-{me.pid}-{me.started}-{secrets.token_hex(4)}"
    wanted = ["pids"]
    wanted += ["memory"] if limits.memory_mb is not None else []
    wanted += ["cpu"] if limits.cpus is not None else []
    folders: dict[str, Path] = {}
    for tree in _trees(hierarchies, root):
        for parent in tree:
            _sweep(parent, _namespace(root))  # every one: a killed run may have had limits that this one has not
        # The first of those with as many controllers, which is the nearest.
        parent, controllers = max(tree.items(), key=lambda row: len(row[1].intersection(wanted)))
        folders |= _limited(parent / name, [controller for controller in wanted if controller in controllers], limits)
    return Group(folders=folders, unlimited=tuple(requested for requested in wanted if requested not in folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hierarchy:
    """A mounted cgroup tree: its mount point, and the folder of this process's own group."""

    top: Path
    own: Path


def _hierarchies(mountinfo: str, cgroup: str) -> dict[str, _Hierarchy]:
    """Return controller -> hierarchy; the key of version 2 is ''."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        # 4:memory:/docker/1f2e for version 1, 0::/user.slice for version 2
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for controller in names.split(","):
            paths[controller] = path
    hierarchies: dict[str, _Hierarchy] = {}
    for line in mountinfo.splitlines():
        # 35 25 0:30 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
        left, dash, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):  # noqa: PLR2004
            continue
        for name in [""] if kinds[0] == "cgroup2" else kinds[2].split(","):
            if name in paths and name not in hierarchies:
                inside = _below(paths[name], fields[3])
                top = Path(fields[4])
                hierarchies[name] = _Hierarchy(top=top, own=top / inside)
    return hierarchies


def _below(path: str, root: str) -> PurePosixPath:
    """Return a group's path relative to the mount's root, or '.' if the mount shows another part of the tree."""
    try:
        return PurePosixPath(path).relative_to(root)
    except ValueError:
        return PurePosixPath()


def _trees(hierarchies: Mapping[str, _Hierarchy], root: Path) -> list[dict[Path, frozenset[str]]]:
    """Return for each tree the folders in which a group can be created, nearest first, with their controllers."""
    trees: list[dict[Path, frozenset[str]]] = []
    for hierarchy in dict.fromkeys(hierarchies.values()):
        own, top = _at(root, hierarchy.own), _at(root, hierarchy.top)
        names = frozenset(name for name, other in hierarchies.items() if other == hierarchy)
        if "" in names:
            above = (folder for folder in (own, *own.parents) if folder.is_relative_to(top))
            tree = {folder: _enabled(folder) for folder in above if os.access(folder, os.W_OK)}
        else:
            tree = {own: names}
        trees += [tree] if tree else []
    return trees


def _enabled(folder: Path) -> frozenset[str]:
    """Return the controllers of a group's children in version 2."""
    return frozenset(_text(folder / "cgroup.subtree_control").split())


def _at(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _limited(folder: Path, controllers: Sequence[str], limits: RunLimits) -> dict[str, Path]:
    """Create a group and set its limits; return the controllers whose limit could be set, each with the folder."""
    done: dict[str, Path] = {}
    for controller in controllers:
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            _limit(folder, controller, limits)
            done[controller] = folder
    if not done:
        _remove(folder)
    return done


def _limit(folder: Path, controller: str, limits: RunLimits) -> None:
    is_version_1 = (folder / "tasks").exists()  # version 2 has only cgroup.procs
    if controller == "pids":
        (folder / "pids.max").write_text(str(limits.pids))
    elif controller == "cpu" and limits.cpus is not None:
        quota = int(limits.cpus * _PERIOD_US)
        if is_version_1:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    elif limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        # First, because version 1 refuses a memory limit above the limit for memory and swap.
        (folder / ("memory.limit_in_bytes" if is_version_1 else "memory.max")).write_text(size)
        # No swap in addition. A kernel without swap accounting does not have these files.
        swap, value = ("memory.memsw.limit_in_bytes", size) if is_version_1 else ("memory.swap.max", "0")
        with contextlib.suppress(OSError):
            (folder / swap).write_text(value)


def _namespace(root: Path) -> int:
    """Return the number of this process's PID namespace: process IDs in a group's name are valid only there."""
    try:
        return (root / "proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _sweep(parent: Path, namespace: int) -> None:
    """Remove the groups of runs that were killed, and kill the processes in them."""
    own = f"{_PREFIX}{namespace}-"
    for folder in parent.glob(f"{own}*-*-*"):
        pid, _, rest = folder.name.removeprefix(own).partition("-")
        # Compare the start time as well, because the kernel reuses process IDs.
        if pid.isdigit() and identity.start_ticks(int(pid)) != rest.partition("-")[0]:
            for leftover in _text(folder / "cgroup.procs").split():
                with contextlib.suppress(OSError):
                    os.kill(int(leftover), signal.SIGKILL)
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a group, retrying: it stays busy for a moment after its last process has ended."""
    for _ in range(20):
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:  # it does not exist, or containers see all groups read-only
                return
            time.sleep(0.05)
        else:
            return


def _count(text: str, key: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
