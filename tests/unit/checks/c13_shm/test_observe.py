from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

c13_shm: Any = import_module("envkit.checks.c13_shm.observe")


def test_loader_in_flight_counts_the_batch_each_worker_is_making() -> None:
    assert c13_shm.in_flight({"num_workers": 4, "prefetch_factor": 2, "batch_bytes": 10}) == 4 * 2 * 10 + 4 * 10


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("unable to write to file </torch_1_2>: No space left on device (28)", "no_space"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_9>: Success (0)", "no_space"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that", "bus_error"),
        ("DataLoader worker (pid(s) 7) exited unexpectedly", "other"),
        ("DataLoader timed out after 20 seconds", "timeout"),
    ],
)
def test_the_known_ends_of_a_loader_without_room(message: str, kind: str) -> None:
    assert c13_shm.signature(message) == kind
