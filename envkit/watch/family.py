"""The processes of a training: those below one process, or those of a container.

A container's processes are not always below the client that started it, and have other process ids in it than here.
What they have in common is a folder that is mounted in this container and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from envkit.ground.process import tree

PROC = Path("/proc")
_LOOKS = 40  # of two per second: what has no such mount after 20 seconds gets none


class Family(Protocol):
    """The processes of one training."""

    def look(self) -> None:
        """Find out what runs now."""

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Its processes; `more` are some of it that may have left the tree."""

    @property
    def chief(self) -> tuple[int, ...]:
        """Its first process, where that is the training's own."""

    @property
    def peer(self) -> str | None:
        """The name in /proc of a process with its control group and its /dev/shm; None where there is none."""

    def here(self, pid: int) -> int | None:
        """This machine's id of a process that calls itself `pid`, None where it is not seen."""

    def is_gone(self, pid: int) -> bool:
        """Whether a process that calls itself `pid` surely ended."""


class Tree:
    """A process of this machine and all below it."""

    peer = "self"

    def __init__(self, pid: int, *, root: Path = PROC) -> None:
        self._pid, self._root = pid, root

    def look(self) -> None:
        """Do nothing: each question is answered by the kernel."""

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Its processes."""
        return {self._pid, *tree(self._pid), *more}

    @property
    def chief(self) -> tuple[int, ...]:
        """Its first process."""
        return (self._pid,)

    def here(self, pid: int) -> int | None:
        """The same id."""
        return pid if (self._root / str(pid)).exists() else None

    def is_gone(self, pid: int) -> bool:
        """Whether the process does not exist."""
        return self.here(pid) is None


class Container:
    """The processes that have something mounted at a place that no other container has.

    Args:
        place: where it is mounted in the container.
        root: the proc file system of this machine.
    """

    chief = ()

    def __init__(self, place: str, *, root: Path = PROC) -> None:
        self._place, self._root = place.encode(), root
        self._others = dict.fromkeys(_pids(root), _LOOKS)  # looks at processes that were not of it
        self._ids: dict[int, int] = {}  # this machine's id -> the container's own
        self._was_seen = False

    def look(self) -> None:
        """Find its processes. A process gets its mounts a while after it began, so some are looked at again."""
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
        """Its processes; `more` are some of them."""
        return {*self._ids, *more}

    @property
    def peer(self) -> str | None:
        """Its oldest process, as far as ids tell."""
        return str(min(self._ids)) if self._ids else None

    def here(self, pid: int) -> int | None:
        """This machine's id of one of its processes."""
        return next((host_pid for host_pid, own in self._ids.items() if own == pid), None)

    def is_gone(self, pid: int) -> bool:
        """Whether the process ended; that cannot be told of a container whose processes were never seen."""
        return self._was_seen and self.here(pid) is None

    def _has_mount(self, pid: int) -> bool:
        rows = _bytes(self._root / str(pid) / "mountinfo").splitlines()
        return any(row.split(b" ", 5)[4:5] == [self._place] for row in rows)


def _pids(root: Path) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(root) if name.isascii() and name.isdigit()}  # noqa: PTH208 - twice a second
    return set()


def _own_id(folder: Path) -> int | None:
    """The id that a process has for itself: the last of those in its status, one for each namespace that it is in."""
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
