"""The owner of a container: labels that show whether the run that created it is still alive."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.naming import LABEL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = f"{LABEL_PREFIX}.run"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """One process of envkit: a random ID, and what shows whether the process still exists."""

    id: str
    pid: int
    started: str  # clock ticks since boot, because a PID is reused
    boot: str
    host: str

    def labels(self) -> dict[str, str]:
        """Return the identity as container labels."""
        return {
            PREFIX: self.id,
            f"{PREFIX}.pid": str(self.pid),
            f"{PREFIX}.started": self.started,
            f"{PREFIX}.boot": self.boot,
            f"{PREFIX}.host": self.host,
        }


def current() -> RunIdentity:
    """Return the identity of this process; a forked child has its own."""
    return _identity(os.getpid())


def abandoned(labels: Mapping[str, str]) -> bool:
    """Return whether these labels were set by a run on this host that has ended.

    Labels of another host are never abandoned, because only that host can tell. Neither are containers without labels.
    """
    if labels.get(f"{PREFIX}.host") != current().host:
        return False
    pid, started = labels.get(f"{PREFIX}.pid", ""), labels.get(f"{PREFIX}.started", "")
    if not pid.isdigit():
        return False
    # After a restart of the machine, its process IDs begin again.
    return labels.get(f"{PREFIX}.boot") != current().boot or start_ticks(int(pid)) != started


def start_ticks(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if it does not exist or is a zombie."""
    fields = stat_fields(pid)
    # proc_pid_stat(5): state is field 3 and starttime field 22; `fields` begins with field 3.
    return "" if not fields or fields[0] == "Z" else fields[19]


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the program's name; empty if the process does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The name in parentheses may contain any bytes, blanks and parentheses, too: 7 (a) b) S 1 ...
    return stat.rpartition(b")")[2].decode().split()


@lru_cache(maxsize=2)
def _identity(pid: int) -> RunIdentity:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return RunIdentity(id=secrets.token_hex(8), pid=pid, started=start_ticks(pid), boot=boot, host=socket.gethostname())
