"""The number of parallel builds that processors, memory and disk allow, with the reason for it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import cores
from envkit.ground.progress import counted
from envkit.ground.sizes import shown_size

# Bytes per build. The embedded engine streams downloads and layers; measured peaks stay below this.
MEMORY = 700 << 20
# Bytes per build: downloads, layers and temporary files of one CUDA image.
DISK = 6 << 30
# In a container, the files below are those of its own cgroup.
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # cgroup v2, v1
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelBuilds:
    """A number of parallel builds and the limit it comes from."""

    jobs: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of a machine for builds."""

    processors: int
    memory: int  # available bytes
    disk: int  # free bytes on the file system of `folder`
    folder: Path  # the cache folder, or its nearest parent that exists


def parallel_builds(resources: Resources, images: int, requested: int | None = None) -> ParallelBuilds:
    """Return the number of parallel builds.

    A single build already uses all processors for its layers, so more builds than processors bring nothing.

    Args:
        resources: the resources of this machine.
        images: the number of images to build.
        requested: the value of `--jobs`, which is used regardless of the resources.

    Raises:
        EnvironmentProblem: the disk is too full for a single build, and --jobs was not given.
    """
    if requested is not None:
        jobs = min(requested, max(images, 1))
        return ParallelBuilds(jobs=jobs, why="--jobs" if requested <= images else counted(images, "image"))
    if resources.disk < DISK // 4:
        raise EnvironmentProblem(
            f"{resources.folder} has {shown_size(resources.disk, 'GB', 1)} free, "
            "too little for the downloads and layers of a build",
            hint="envkit cache prune, set XDG_CACHE_HOME to a larger disk, or --jobs 1 to try",
        )
    by_memory, by_disk = max(resources.memory // MEMORY, 1), max(resources.disk // DISK, 1)
    limits = (
        (max(images, 1), counted(images, "image")),
        (resources.processors, counted(resources.processors, "processor")),
        (by_memory, f"{shown_size(resources.memory, 'GB', 1)} of memory, {shown_size(MEMORY, 'GB', 1)} for each"),
        (by_disk, f"{shown_size(resources.disk, 'GB')} free in {resources.folder}, {shown_size(DISK, 'GB')} for each"),
    )
    jobs, why = min(limits, key=lambda limit: limit[0])
    return ParallelBuilds(jobs=jobs, why=why)


def resources_here(cache: Path) -> Resources:
    """Return the resources of this machine; `cache` is the cache folder, which need not exist yet."""
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    return Resources(processors=cores(), memory=_memory(), disk=shutil.disk_usage(folder).free, folder=folder)


def _memory(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> int:
    """Return the available memory in bytes, at most the limit of this process's cgroup."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    # MemAvailable counts caches that the kernel can drop; Linux before 3.14 does not have it.
    available = int(lines.get("MemAvailable", lines.get("MemFree", "0")).split()[0]) * 1024
    for name in _LIMITS:
        try:
            text = (cgroups / name).read_text().strip()
        except OSError:
            continue
        # Without a limit, cgroup v2 has `max`, and v1 a number near 2^63, which `min` ignores.
        if text.isdigit():
            available = min(available, int(text))
    return available
