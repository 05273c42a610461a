"""How much shared memory a loader needs, and the advice if there is too little."""

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
    """Whether the run used the /dev/shm of the surrounding container or machine, which says nothing about the image."""
    return SHARED in env.get("missing", ())


def mount(env: Mapping[str, Any]) -> str:
    """Return the name of the mount for messages."""
    return f"{MOUNT} of the host" if is_shared(env) else MOUNT


def in_flight(loader: Mapping[str, Any]) -> int:
    """Return the most bytes a loader keeps in shared memory: each worker holds prefetch_factor batches and one more."""
    # With workers, torch's own default of prefetch_factor is 2.
    workers, prefetch = int(loader.get("num_workers") or 0), int(loader.get("prefetch_factor") or 2)
    return workers * (prefetch + 1) * int(loader.get("batch_bytes") or 0)


def recommended_mib(need: int) -> int:
    """Return the /dev/shm size to request in MiB: twice the need, rounded up to a power of two, at least 128."""
    size = 128  # the next power of two above Docker's default of 64 MiB
    while size * MIB < 2 * need:
        size *= 2
    return size


def advice(need: int) -> str:
    """Return the advice that makes room for ``need`` bytes."""
    return f"Start the container with --shm-size={recommended_mib(need)}m (or --ipc=host), or lower prefetch_factor."
