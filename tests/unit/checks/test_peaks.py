"""What a GPU allows at most, by its own numbers, against the data sheets they are made from."""

from __future__ import annotations

from typing import Any

import pytest

from envkit.checks import peaks

# Name, capability, multiprocessors, MHz at which the data sheet's rate holds, TFLOP/s in half precision.
SHEETS = [
    ("Tesla V100-SXM2-16GB", "7.0", 80, 1530, 125),
    ("Tesla T4", "7.5", 40, 1590, 65),
    ("NVIDIA A100-SXM4-40GB", "8.0", 108, 1410, 312),
    ("NVIDIA A10", "8.6", 72, 1695, 125),
    ("NVIDIA GeForce RTX 3090", "8.6", 82, 1695, 71),
    ("NVIDIA L4", "8.9", 58, 2040, 121),
    ("NVIDIA GeForce RTX 4090", "8.9", 128, 2520, 165),
    ("NVIDIA H100 80GB HBM3", "9.0", 132, 1830, 989),
    ("NVIDIA B200", "10.0", 148, 1857, 2250),
    ("NVIDIA GeForce RTX 5090", "12.0", 170, 2407, 210),
]


@pytest.mark.parametrize(("name", "capability", "count", "clock", "rate"), SHEETS, ids=str)
def test_products_are_bounded_as_the_data_sheet_says(
    name: str, capability: str, count: int, clock: int, rate: float
) -> None:
    limits = {"name": name, "capability": capability, "multiprocessors": count, "max_sm_mhz": clock}
    assert peaks.product_limit(limits) == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize(
    ("bits", "clock", "rate"), [(5120, 2619, 3352), (5120, 1215, 1555), (256, 5001, 320), (384, 10501, 1008)]
)
def test_memory_is_bounded_as_the_data_sheet_says(bits: int, clock: int, rate: float) -> None:
    assert peaks.memory_limit({"memory_bits": bits, "memory_mhz": clock}) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("missing", ["capability", "multiprocessors", "max_sm_mhz", "memory_bits", "memory_mhz"])
def test_without_a_number_there_is_no_bound(missing: str) -> None:
    full = {"capability": "9.0", "multiprocessors": 132, "max_sm_mhz": 1980, "memory_bits": 5120, "memory_mhz": 2619}
    limits: dict[str, Any] = {**full, missing: None}
    bound = peaks.memory_limit if missing.startswith("memory") else peaks.product_limit
    assert bound(full) is not None
    assert bound(limits) is None


def test_an_unknown_capability_has_no_bound() -> None:
    assert peaks.product_limit({"capability": "13.7", "multiprocessors": 100, "max_sm_mhz": 2000}) is None


@pytest.mark.parametrize(
    ("name", "has"), [("NVIDIA GeForce GTX 1660 Ti", False), ("NVIDIA T1000", False), ("Tesla T4", True)]
)
def test_a_gpu_without_tensor_cores_has_no_bound_of_theirs(name: str, has: bool) -> None:
    limits = {"name": name, "capability": "7.5", "multiprocessors": 24, "max_sm_mhz": 2100}
    assert (peaks.product_limit(limits) is not None) is has


CAPPED = {"sm_mhz": 1500, "celsius": 53, "watts": 690.0, "events": ["sw_power_cap"]}


@pytest.mark.parametrize(
    ("health", "top", "text"),
    [
        (CAPPED, 1980.0, "its power limit holds the clock at 1500 of 1980 MHz"),
        (CAPPED, None, "its power limit holds the clock at 1500 MHz"),
        ({**CAPPED, "sm_mhz": None}, 1980.0, "its power limit holds the clock"),
        ({**CAPPED, "sm_mhz": "fast"}, 1980.0, "its power limit holds the clock"),
        ({**CAPPED, "events": ["hw_slowdown"]}, 1980.0, ""),
        ({**CAPPED, "events": []}, 1980.0, ""),
        ({**CAPPED, "events": None}, 1980.0, ""),
        (None, 1980.0, ""),
    ],
)
def test_a_power_limit_is_named_with_the_clock_it_allows(health: Any, top: float | None, text: str) -> None:
    assert peaks.power_held(health, top) == text
