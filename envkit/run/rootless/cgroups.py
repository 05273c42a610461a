"""A control group for one run, where this process may make one: limits on memory, processes and processor time.

Version 1 has a tree for each controller, version 2 one tree in which a group with processes of its own can give its
children no limits, so there the nearest group above that already does is asked. What cannot be limited is said.
Source: Linux Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envkit.ground import identity
from envkit.run.model import RunLimits

# The kernel's own default (Documentation/scheduler/sched-bwc.rst).
_PERIOD_US = 100_000
_PREFIX = "envkit-"
_CONTROLLERS = ("pids", "memory", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The folders of one run's group: controller -> folder. `unlimited` names what no controller limits."""

    folders: Mapping[str, Path]
    unlimited: tuple[str, ...]

    def join(self, pid: int) -> None:
        """Put a process into the group; what it starts from then on is in it, too."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the group for memory."""
        folder = self.folders.get("memory")
        if folder is None:
            return False
        for name in ("memory.events", "memory.oom_control"):  # version 2, version 1
            with contextlib.suppress(OSError):
                return _count((folder / name).read_text(), "oom_kill") > 0
        return False

    def remove(self) -> None:
        """Remove the group; its processes have to be gone."""
        for folder in set(self.folders.values()):
            _remove(folder)


def make(limits: RunLimits, *, root: Path = Path("/")) -> Group:
    """A group with these limits, as far as the system lets this process make one. `root` is where /proc lies."""
    places = _places(_text(root / "proc/self/mountinfo"), _text(root / "proc/self/cgroup"))
    me = identity.current()
    name = f"{_PREFIX}{_namespace(root)}-{me.pid}-{me.started}-{secrets.token_hex(4)}"
    wanted = ["pids"]
    wanted += ["memory"] if limits.memory_mb is not None else []
    wanted += ["cpu"] if limits.cpus is not None else []
    folders: dict[str, Path] = {}
    parents = {controller: _parent(controller, places, root) for controller in _CONTROLLERS}
    for base in {path for path in parents.values() if path is not None}:
        _sweep(base, _namespace(root))  # of every controller: a killed run may have had a limit that this one has not
    for controller in wanted:
        parent = parents[controller]
        if parent is None:
            continue
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            _limit(folder, controller, limits)
        except OSError:
            _remove(folder)
            continue
        folders[controller] = folder
    return Group(folders=folders, unlimited=tuple(requested for requested in wanted if requested not in folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where this process's own group lies, and the top of what can be seen."""

    top: Path
    own: Path


def _places(mountinfo: str, cgroup: str) -> dict[str, _Place]:
    """Controller -> place; version 2 has the name ''."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for controller in names.split(","):
            paths[controller] = path
    places: dict[str, _Place] = {}
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):  # noqa: PLR2004
            continue
        for name in [""] if kinds[0] == "cgroup2" else kinds[2].split(","):
            if name in paths and name not in places:
                inside = _below(paths[name], fields[3])
                top = Path(fields[4])
                places[name] = _Place(top=top, own=top / inside)
    return places


def _below(path: str, root: str) -> PurePosixPath:
    """A group's path from the mount's own root; a mount of another part of the tree shows its root as '/'."""
    try:
        return PurePosixPath(path).relative_to(root)
    except ValueError:
        return PurePosixPath()


def _parent(controller: str, places: Mapping[str, _Place], root: Path) -> Path | None:
    """Where a group with a limit of this controller can be made."""
    if controller in places:
        return _at(root, places[controller].own)
    if "" not in places:
        return None
    folder, top = _at(root, places[""].own), _at(root, places[""].top)
    while True:
        given = _text(folder / "cgroup.subtree_control").split()
        if {controller, "pids"} <= set(given) and os.access(folder, os.W_OK):
            return folder
        if folder == top or top not in folder.parents:
            return None
        folder = folder.parent


def _at(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _limit(folder: Path, controller: str, limits: RunLimits) -> None:
    old = (folder / "tasks").exists()  # version 1
    if controller == "pids":
        (folder / "pids.max").write_text(str(limits.pids))
    elif controller == "cpu" and limits.cpus is not None:
        quota = int(limits.cpus * _PERIOD_US)
        if old:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    elif limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        # Before the limit with swap: version 1 refuses a memory limit above that one.
        (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(size)
        # No swap on top of it; a kernel that does not account swap has no such file.
        with contextlib.suppress(OSError):
            (folder / ("memory.memsw.limit_in_bytes" if old else "memory.swap.max")).write_text(size if old else "0")


def _namespace(root: Path) -> int:
    """The number of this process's PID namespace: a group's processes can be judged in their own only."""
    try:
        return (root / "proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _sweep(parent: Path, namespace: int) -> None:
    """Remove groups of runs that ended, and end what is left in them."""
    own = f"{_PREFIX}{namespace}-"
    for folder in parent.glob(f"{own}*-*-*"):
        pid, _, rest = folder.name.removeprefix(own).partition("-")
        # By start time as well: the kernel gives the number of a process that ended to another one.
        if pid.isdigit() and identity.start_ticks(int(pid)) != rest.partition("-")[0]:
            for left in _text(folder / "cgroup.procs").split():
                with contextlib.suppress(OSError):
                    os.kill(int(left), signal.SIGKILL)
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a group; the kernel may need a moment after its last process has ended."""
    for _ in range(20):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
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
