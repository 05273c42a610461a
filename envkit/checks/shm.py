"""How much shared memory a loader needs, and the advice where there is too little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
MOUNT = "/dev/shm"  # noqa: S108 - the mount itself is the subject


SHARED = "shared-memory"
"""The guarantee of a runner that gives each run a /dev/shm of its own."""
AROUND_TOO_SMALL = "SHM_AROUND_TOO_SMALL"


def is_shared(env: Mapping[str, Any]) -> bool:
    """Whether the run had the /dev/shm of the container or machine around it, which says nothing of the image."""
    return SHARED in env.get("missing", ())


def mount(env: Mapping[str, Any]) -> str:
    """Return the mount's name in messages."""
    return f"{MOUNT} of the host" if is_shared(env) else MOUNT


def in_flight(loader: Mapping[str, Any]) -> int:
    """Return the bytes a loader keeps in shared memory at most: workers x prefetch x batch, one more per worker."""
    workers, prefetch = int(loader.get("num_workers") or 0), int(loader.get("prefetch_factor") or 2)
    return workers * (prefetch + 1) * int(loader.get("batch_bytes") or 0)


def recommended_mib(need: int) -> int:
    """Return the size to ask for in MiB: twice the need, rounded up to a power of two, at least 128."""
    size = 128
    while size * MIB < 2 * need:
        size *= 2
    return size


def advice(need: int) -> str:
    """Return the flags that make room for ``need`` bytes."""
    return f"Start the container with --shm-size={recommended_mib(need)}m (or --ipc=host), or lower prefetch_factor."
