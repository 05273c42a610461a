"""The processes of a training: one process and its descendants, those of a container, or those of a session of proot.

A container's processes are not always descendants of the client that started it, and have other process IDs inside.
They are recognized by a folder that is mounted in this container and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from envkit.ground.process import tree

PROC = Path("/proc")
_LOOKS = 40  # at two per second: a process without the mount after 20 seconds does not belong to the container


class Family(Protocol):
    """The processes of one training."""

    def update(self) -> None:
        """Find the processes that are running now."""

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Return all processes; `more` are members that may have left the tree."""

    @property
    def chief(self) -> tuple[int, ...]:
        """Its first process, if that is the training's own."""

    @property
    def peer(self) -> str | None:
        """The name in /proc of a process with its control group and its /dev/shm, None if there is none."""

    def here(self, pid: int) -> int | None:
        """Return this machine's ID of the process whose own ID is `pid`, None if it is not visible."""

    def is_gone(self, pid: int) -> bool:
        """Whether the process whose own ID is `pid` has certainly ended."""


class Tree:
    """A process of this machine and its descendants."""

    peer = "self"

    def __init__(self, pid: int, *, root: Path = PROC) -> None:
        self._pid, self._root = pid, root
        self.chief: tuple[int, ...] = (pid,)

    def update(self) -> None:
        """Do nothing: every call reads /proc."""

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Return the process, its descendants and `more`."""
        return {self._pid, *tree(self._pid), *more}

    def here(self, pid: int) -> int | None:
        """Return the same ID, None if the process does not exist."""
        return pid if (self._root / str(pid)).exists() else None

    def is_gone(self, pid: int) -> bool:
        """Whether the process does not exist."""
        return self.here(pid) is None


class Below(Tree):
    """The descendants of a process of envkit, which runs a session without namespaces of its own."""

    def __init__(self, pid: int, *, root: Path = PROC) -> None:
        super().__init__(pid, root=root)
        self.chief = ()

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Return the descendants and `more`."""
        return super().every(more) - {self._pid}


class Container:
    """The processes of the container that has a mount at a unique path.

    Args:
        mount: the path of the mount in the container.
        root: the proc file system of this machine.
    """

    chief = ()

    def __init__(self, mount: str, *, root: Path = PROC) -> None:
        self._mount, self._root = mount.encode(), root
        # Other processes -> how often they were checked. Those that run already cannot belong to the container.
        self._others = dict.fromkeys(_pids(root), _LOOKS)
        self._ids: dict[int, int] = {}  # this machine's ID -> the ID in the container
        self._was_seen = False

    def update(self) -> None:
        """Find the container's processes. A process may get its mounts after it starts, so new ones are rechecked."""
        alive = _pids(self._root)
        self._ids = {pid: own for pid in alive & self._ids.keys() if (own := _own_id(self._root / str(pid)))}
        self._others = {pid: looks for pid, looks in self._others.items() if pid in alive}
        for pid in alive - self._ids.keys():
            looks = self._others.get(pid, 0)
            if looks >= _LOOKS:
                continue
            own = _own_id(self._root / str(pid)) if self._has_mount(pid) else None
            if own is None:
                self._others[pid] = looks + 1
            else:
                self._ids[pid] = own
                self._others.pop(pid, None)
        self._was_seen = self._was_seen or bool(self._ids)

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Return the container's processes and `more`."""
        return {*self._ids, *more}

    @property
    def peer(self) -> str | None:
        """The process with the smallest ID, usually the oldest."""
        return str(min(self._ids)) if self._ids else None

    def here(self, pid: int) -> int | None:
        """Return this machine's ID of the process with the ID `pid` in the container, None if it is not visible."""
        return next((host_pid for host_pid, own in self._ids.items() if own == pid), None)

    def is_gone(self, pid: int) -> bool:
        """Whether the process has ended; unknown, so False, if no process of the container was ever visible."""
        return self._was_seen and self.here(pid) is None

    def _has_mount(self, pid: int) -> bool:
        # proc_pid_mountinfo(5): the fifth field is the mount point, as in
        # 36 35 98:0 /folder /run/NAME rw,noatime - ext4 /dev/sda1 rw
        rows = _bytes(self._root / str(pid) / "mountinfo").splitlines()
        return any(row.split(b" ", 5)[4:5] == [self._mount] for row in rows)


def _pids(root: Path) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(root) if name.isascii() and name.isdigit()}  # noqa: PTH208 - twice a second
    return set()


def _own_id(folder: Path) -> int | None:
    """Return a process's ID in its own PID namespace: the last one in NSpid, which has one ID per nested namespace."""
    # NSpid: 4711 12 (tab-separated), from this machine's ID to that in the innermost namespace.
    for row in _bytes(folder / "status").splitlines():
        name, _, values = row.partition(b":")
        if name == b"NSpid" and values.split():
            return int(values.split()[-1])
    return None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
