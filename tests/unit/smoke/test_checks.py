from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

c00_container: Any = import_module("envkit.smoke.checks.c00_container")
c09_pinned: Any = import_module("envkit.smoke.checks.c09_pinned")
c10_transfer: Any = import_module("envkit.smoke.checks.c10_transfer")
c13_shm: Any = import_module("envkit.smoke.checks.c13_shm")


MIB = 1 << 20


def test_only_device_nodes_of_gpus_count() -> None:
    names = ["null", "nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia-modeset", "shm"]
    assert c00_container.device_nodes(names) == ["nvidia0", "nvidia1"]
    assert c00_container.device_nodes(["dxg"]) == ["dxg"]


def test_only_variables_of_cuda_and_torch_leave_the_container_and_no_secret() -> None:
    environment = {
        "HOME": "/home/user",
        "AWS_SECRET_ACCESS_KEY": "x",
        "TORCH_HUB_TOKEN": "x",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "TORCH_LOGS": "",
        "OMP_NUM_THREADS": "4",
    }
    found = c00_container.relevant(environment)
    assert found == {"NVIDIA_VISIBLE_DEVICES": "all", "OMP_NUM_THREADS": "4", "TORCH_LOGS": ""}


@pytest.mark.parametrize(
    ("loader", "need"),
    [
        (None, None),
        ({}, None),
        ({"batch_bytes": MIB, "pin_memory": False}, None),
        ({"batch_bytes": 16 * MIB, "prefetch_factor": 2, "pin_memory": True}, 64 * MIB),
        ({"batch_bytes": 16 * MIB, "prefetch_factor": None}, 64 * MIB),
    ],
)
def test_pinned_need_is_prefetch_times_batch_times_two(loader: dict[str, object] | None, need: int | None) -> None:
    assert c09_pinned.loader_need(loader) == need


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


def test_rate_is_in_units_of_a_billion_bytes_per_second() -> None:
    assert c10_transfer.rate(256, 10.0) == pytest.approx(26.8435456)
    assert c10_transfer.rate(1, 0.0) is None


def test_ratio_above_one_means_pinned_is_faster() -> None:
    measured = {
        16: {"h2d_pinned": {"stats": {"median": 1.0}}, "h2d_pageable": {"stats": {"median": 1.5}}},
        64: {"h2d_pinned": {"stats": {"median": 0.0}}, "h2d_pageable": {"stats": {"median": 1.5}}},
    }
    assert c10_transfer.ratios("h2d", measured) == {"16": 1.5, "64": None}
