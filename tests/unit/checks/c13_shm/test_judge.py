from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from envkit.checks import shm
from tests.support.verdicts import ERROR, FAIL, PASS, WARN, found, said

c13_shm: Any = import_module("envkit.checks.c13_shm.observe")

MIB = 1 << 20
RAN = {"outcome": "ok", "need_bytes": 96 * MIB, "shm_bytes": 1024 * MIB, "free_bytes": 1024 * MIB, "message": ""}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (PASS, None)),
        ({"free_bytes": 192 * MIB}, (PASS, None)),
        ({"free_bytes": 191 * MIB}, (WARN, "SHM_TIGHT")),
        ({"free_bytes": None, "shm_bytes": None}, (WARN, "SHM_TIGHT")),
        ({"outcome": "no_space", "message": "No space left on device (28)"}, (FAIL, "SHM_TOO_SMALL")),
        ({"outcome": "bus_error", "message": "killed by signal: Bus error"}, (FAIL, "SHM_TOO_SMALL")),
        ({"outcome": "timeout", "message": "timed out"}, (FAIL, "SHM_TOO_SMALL")),
        ({"outcome": "wrong_data"}, (FAIL, "LOADER_WRONG_DATA")),
        ({"outcome": "other", "message": "cannot fork"}, (ERROR, "LOADER_BROKE")),
    ],
)
def test_shm(changed: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C13.shm", {**RAN, **changed}) == expected


def test_a_loader_without_room_is_told_the_size_to_ask_for() -> None:
    observed = {**RAN, "outcome": "no_space", "need_bytes": 154_000_000, "shm_bytes": 64_000_000}
    finding = found("C13.shm", {**observed, "message": "Caught RuntimeError\nNo space left on device (28)"})
    assert finding.message == ("the loader keeps 154 MB in flight and /dev/shm is 64 MB: No space left on device (28)")
    assert "--shm-size=512m" in finding.advice[0]


def test_too_little_room_around_the_run_is_no_fault_of_the_image() -> None:
    observed = {**RAN, "outcome": "no_space", "need_bytes": 154_000_000, "shm_bytes": 64_000_000}
    observed["message"] = "No space left on device (28)"
    finding = found("C13.shm", observed, {"shm_mb": 1024}, missing=("network", "shared-memory"))
    assert (finding.verdict, finding.reason_code) == (WARN, "SHM_AROUND_TOO_SMALL")
    assert finding.message == (
        "cannot be decided here: the loader keeps 154 MB in flight and /dev/shm of the host is 64 MB: No space left "
        "on device (28); the plan asks for 1024 MiB"
    )
    assert found("C13.shm", observed, missing=("network",)).verdict == FAIL
    assert found("C13.shm", RAN, missing=("shared-memory",)).message.endswith("/dev/shm of the host is 1074 MB")


@pytest.mark.parametrize("need", [0, 1, 32 * MIB, 33 * MIB, 64 * MIB, 65 * MIB, 5000 * MIB])
def test_the_recommended_size_leaves_room_for_twice_the_need(need: int) -> None:
    size = shm.recommended_mib(need)
    assert size * MIB >= 2 * need
    assert size == 128 or size * MIB < 4 * need


def test_both_sides_count_the_same_bytes() -> None:
    loader = {"num_workers": 3, "prefetch_factor": 4, "batch_bytes": 1000}
    assert shm.in_flight(loader) == c13_shm.in_flight(loader) == 15_000
