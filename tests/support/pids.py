"""Whether processes of others still run."""

import time
from collections.abc import Iterable
from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended; whoever took over an orphan may never ask for its exit code."""
    place = Path(f"/proc/{pid}")
    try:
        ended = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not ended or len(list((place / "task").iterdir())) > 1  # its other threads end after the first one
    except OSError:
        return False


def all_end(pids: Iterable[int], within_s: float) -> bool:
    """Wait until none of them runs; whether that was in time."""
    deadline = time.monotonic() + within_s
    left = [pid for pid in pids if runs(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if runs(pid)]
    return not left
