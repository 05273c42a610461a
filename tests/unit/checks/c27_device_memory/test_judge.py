from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.c27_device_memory.show import show
from envkit.checks.catalog import machine_codes
from tests.support.verdicts import CLEAN, ERROR, FAIL, PASS, WARN, found, said

PATTERN: dict[str, Any] = {"bytes": 64 << 30, "wrong": {"pattern": 0, "complement": 0}}
LIMITS = {"memory_bits": 5120, "memory_mhz": 2619}


def test_memory_that_keeps_the_pattern_passes() -> None:
    finding = found("C27.pattern", PATTERN)
    assert (finding.verdict, finding.message) == (
        PASS,
        "64.0 GiB of device memory kept a pattern and its complement",
    )


@pytest.mark.parametrize("wrong", [{"pattern": 1, "complement": 0}, {"pattern": 0, "complement": 3}, {}])
def test_a_word_that_changed_is_a_fault_of_the_machine(wrong: dict[str, int]) -> None:
    assert said("C27.pattern", {**PATTERN, "wrong": wrong}) == (FAIL, "DEVICE_MEMORY_WRONG")
    assert "DEVICE_MEMORY_WRONG" in machine_codes()


@pytest.mark.parametrize(
    ("rate", "limits", "expected"),
    [
        (2900.0, LIMITS, (PASS, None)),
        (1500.0, LIMITS, (FAIL, "DEVICE_MEMORY_SLOW")),
        (3600.0, LIMITS, (WARN, "ABOVE_MEMORY_LIMIT")),
        (1500.0, {**LIMITS, "memory_bits": None}, (PASS, None)),
        (1500.0, None, (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_copies_are_held_to_the_width_and_clock_of_the_bus(rate: float, limits: Any, expected: Any) -> None:
    assert said("C27.copy", {"gb_per_s": rate, "limits": limits}, noise=CLEAN) == expected
    assert "DEVICE_MEMORY_SLOW" in machine_codes()


def test_size_and_rate_are_one_row() -> None:
    checks = [
        {"id": "C27.pattern", "observed": PATTERN},
        {"id": "C27.copy", "observed": {"gb_per_s": 2900.0}, "derived": {"limit": 3352.0, "fraction_of_limit": 0.865}},
    ]
    assert show(checks).sheets[0].rows == [["64.0", "0", "2900", "3352", "86%"]]
    assert show([]).sheets == ()
