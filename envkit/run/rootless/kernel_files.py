"""Protect the kernel's interfaces below /proc and /sys from a container, but not the entries of its own processes.

Programs write to the latter: NVIDIA's driver names its threads in /proc/PID/task/TID/comm when CUDA starts, and CUDA
fails with error 304 if it cannot. The former are the machine's: the kernel lets its root write sysctls and change modes
below /proc by user ID alone, whatever the capabilities. So all of them are read-only, and what runc masks by default is
empty here, too.
Source: Open Containers runtime specification 1.2, "Masked Paths" and "Readonly Paths"; moby's oci/defaults.go (their
defaults); proc(5); bwrap(1).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MASKED = frozenset(
    {"acpi", "asound", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats"}
)
_MASKED_IN_SYS = ("firmware", "devices/virtual/powercap")
# The kernel reports processes in these, each procfs those of its own namespace. They cannot be written.
_OF_NAMESPACE = frozenset({"loadavg", "locks", "sysvipc"})


def proc_words(proc: Path = Path("/proc")) -> list[str]:
    """Return bubblewrap's arguments after `--proc /proc`, for the kernel files that this machine's /proc shows."""
    entries = sorted(_kernel_entries(proc))
    if not entries:
        # Such as with `ProcSubset=pid` of systemd.exec(5): a new procfs may show what this one hides.
        return ["--remount-ro", "/proc"]
    words: list[str] = []
    for name, is_folder in entries:
        target = f"/proc/{name}"
        if name not in _MASKED:
            words += ["--ro-bind", str(proc / name), target]
        elif is_folder:
            words += empty(target)
        else:
            words += ["--ro-bind", "/dev/null", target]  # without --dev-bind, a device cannot be opened
    return words


def sys_words(sys: Path = Path("/sys")) -> list[str]:
    """Return bubblewrap's arguments after /sys is mounted."""
    return [word for name in _MASKED_IN_SYS if (sys / name).is_dir() for word in empty(f"/sys/{name}")]


def _kernel_entries(proc: Path) -> Iterator[tuple[str, bool]]:
    """Yield the name of each entry that is not of a process, and whether it is a folder."""
    with os.scandir(proc) as entries:
        for entry in entries:
            # Links such as self, net and mounts lead to entries of a process.
            if entry.name.isdigit() or entry.is_symlink() or entry.name in _OF_NAMESPACE:
                continue
            yield entry.name, stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode)


def empty(folder: str) -> list[str]:
    """Return the arguments that show an empty, read-only folder."""
    return ["--tmpfs", folder, "--remount-ro", folder]
