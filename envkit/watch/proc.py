"""Readings of /proc for a training's processes and the machine, and parsers of its texts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

# The payload's readers of limits and counters, which have no type hints.
_hostfacts: Any = import_module("envkit.smoke.hostfacts")
_noise: Any = import_module("envkit.smoke.noise")
_pressure: Any = import_module("envkit.smoke.pressure")
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a process has used since its start."""

    cpu_s: float  # of all its threads
    faults: int  # pages that were read from a disk
    resident: int  # bytes, now
    main_cpu_s: float = 0.0
    main_queued_s: float | None = None  # in which its main thread was ready to run but had no CPU
    read_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Counters of the machine since it was started, and its memory now."""

    pressure: dict[str, float | None]  # seconds in which any process waited, by resource
    throttled_s: float | None  # of this control group
    cached: int | None
    available: int | None
    shm_used: int | None


def parse_stat(text: str) -> tuple[float, int, int] | None:
    """Return CPU seconds, major faults and resident bytes from the text of /proc/PID/stat, None if it is not valid."""
    # 4711 (name) S ...: the name is in parentheses, and may itself have spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    try:
        # proc_pid_stat(5): utime and stime are fields 14 and 15, majflt 12, rss 24; `fields` begins with the third.
        cpu = (int(fields[11]) + int(fields[12])) / _TICK
        return cpu, int(fields[9]), int(fields[21]) * _PAGE
    except (IndexError, ValueError):
        return None


def parse_schedstat(text: str) -> tuple[float, float] | None:
    """Return the seconds on a CPU and the seconds waiting for one from a schedstat text, None if it is not valid."""
    fields = text.split()
    try:
        return int(fields[0]) / 1e9, int(fields[1]) / 1e9
    except (IndexError, ValueError):
        return None


def parse_throttled(text: str) -> float | None:
    """Return the throttled seconds from a cpu.stat text, which has microseconds (cgroup v2) or nanoseconds (v1)."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("throttled_usec", "throttled_time") and value.strip().isdigit():
            return int(value) / (1e6 if name == "throttled_usec" else 1e9)
    return None


def parse_read_bytes(text: str) -> int | None:
    """Return the bytes read from disks from the text of /proc/PID/io, None if they are missing."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes" and value.strip().isdigit():
            return int(value)
    return None


def used(pid: int, *, root: Path = Path("/proc")) -> Used | None:
    """Return what a process has used, None if it is gone."""
    folder = root / str(pid)
    stat = parse_stat(_text(folder / "stat"))
    if stat is None:
        return None
    cpu, faults, resident = stat
    main = parse_schedstat(_text(folder / "schedstat"))  # of the main thread only
    return Used(
        cpu_s=cpu,
        faults=faults,
        resident=resident,
        main_cpu_s=main[0] if main else 0.0,
        main_queued_s=main[1] if main else None,
        read_bytes=parse_read_bytes(_text(folder / "io")),
    )


def host(peer: str | None, *, root: Path = Path("/proc")) -> Host:
    """Return the machine's counters; `peer` names a process with the training's control group and /dev/shm."""
    own = root / (peer or "none")
    # /proc/PID/root is the file system as that process sees it, so it leads to the container's /dev/shm.
    memory, shm = _text(root / "meminfo"), _hostfacts.shared_memory(str(own / "root/dev/shm"))
    cpu_stat = _noise.cpu_stat_paths(_text(own / "cgroup"))
    stalled = {name: _pressure.psi_total_us(_text(root / "pressure" / name)) for name in ("cpu", "io", "memory")}
    throttled = (parse_throttled(_text(Path(path))) for path in cpu_stat)
    return Host(
        pressure={name: None if value is None else value / 1e6 for name, value in stalled.items()},
        throttled_s=next((value for value in throttled if value is not None), None),
        cached=_hostfacts.memory_total(memory, "Cached"),
        available=_hostfacts.memory_total(memory, "MemAvailable"),
        shm_used=None if shm["bytes"] is None else shm["bytes"] - shm["free_bytes"],
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
