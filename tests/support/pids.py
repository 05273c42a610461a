"""Check whether other processes still run."""

import time
from collections.abc import Iterable
from pathlib import Path


def runs(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: the process that adopted an orphan may never wait for it."""
    folder = Path(f"/proc/{pid}")
    try:
        is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie or len(list((folder / "task").iterdir())) > 1  # other threads may end after the first
    except OSError:
        return False


def all_end(pids: Iterable[int], within_s: float) -> bool:
    """Wait until none of the processes runs, and return whether that was in time."""
    deadline = time.monotonic() + within_s
    left = [pid for pid in pids if runs(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if runs(pid)]
    return not left
