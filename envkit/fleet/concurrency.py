"""How many builds at once: as many as processors, memory and disk allow, with the reason for the number."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import cores
from envkit.ground.progress import counted

# A build by the embedded engine holds its downloads and layers in pieces; measured peaks stay below this.
MEMORY = 700 << 20
# Downloads, layers and the passing folder of one image with CUDA; what was made stays in the cache beside them.
DISK = 6 << 30
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A number of builds and what it follows from."""

    jobs: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a machine has for builds."""

    processors: int
    memory: int  # bytes that are available
    disk: int  # bytes that are free where the caches are
    folder: Path  # where that is


def bound(room: Room, images: int, asked: int | None = None) -> Bound:
    """The number of builds at once.

    One image's layers are made on all processors already, so more builds than processors would only take turns.

    Args:
        room: what this machine has.
        images: how many there are to build.
        asked: what `--jobs` says; it is taken, however little room there is.

    Raises:
        EnvironmentProblem: the disk has no room for a single build, and --jobs was not given.
    """
    if asked is not None:
        return Bound(jobs=min(asked, max(images, 1)), why="--jobs" if asked <= images else counted(images, "image"))
    if room.disk < DISK // 4:
        raise EnvironmentProblem(
            f"{room.folder} has {room.disk / 1e9:.1f} GB free, and a build needs room for its downloads and layers",
            hint="envkit cache prune, set XDG_CACHE_HOME to a larger disk, or --jobs 1 to try",
        )
    by_memory, by_disk = max(room.memory // MEMORY, 1), max(room.disk // DISK, 1)
    limits = (
        (max(images, 1), counted(images, "image")),
        (room.processors, counted(room.processors, "processor")),
        (by_memory, f"{room.memory / 1e9:.1f} GB of memory, {MEMORY / 1e9:.1f} GB for each"),
        (by_disk, f"{room.disk / 1e9:.0f} GB free in {room.folder}, {DISK / 1e9:.0f} GB for each"),
    )
    jobs, why = min(limits, key=lambda limit: limit[0])
    return Bound(jobs=jobs, why=why)


def room_here(cache: Path) -> Room:
    """What this machine has; `cache` is the folder of layers and downloads, or will be."""
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    return Room(processors=cores(), memory=_memory(), disk=shutil.disk_usage(folder).free, folder=folder)


def _memory(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> int:
    """Bytes that programs may still take, in this container if there is one."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(lines.get("MemAvailable", lines.get("MemFree", "0")).split()[0]) * 1024
    for name in _LIMITS:
        try:
            text = (cgroups / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            available = min(available, int(text))
    return available
