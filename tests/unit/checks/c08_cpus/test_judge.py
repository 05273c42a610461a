from __future__ import annotations

import pytest

from tests.support.verdicts import FAIL, PASS, WARN, found, said


@pytest.mark.parametrize(
    ("effective", "threads", "expected"),
    [
        (8.0, 8, (PASS, None)),
        (8.0, 4, (PASS, None)),
        (1.5, 2, (WARN, "TOO_MANY_THREADS")),
        (1.5, 1, (PASS, None)),
        (0.5, 1, (PASS, None)),
        (4.0, 192, (WARN, "TOO_MANY_THREADS")),
    ],
)
def test_threads(effective: float, threads: int, expected: tuple[str, str | None]) -> None:
    assert said("C08.threads", {"effective": effective, "torch_threads": threads}) == expected


def test_the_advice_rounds_the_quota_down() -> None:
    assert "OMP_NUM_THREADS=3 " in found("C08.threads", {"effective": 3.9, "torch_threads": 8}).advice[0]


@pytest.mark.parametrize(
    ("runtimes", "expected"),
    [([], (PASS, None)), (["libgomp"], (PASS, None)), (["libgomp", "libiomp5"], (WARN, "TWO_OPENMP_RUNTIMES"))],
)
def test_openmp(runtimes: list[str], expected: tuple[str, str | None]) -> None:
    assert said("C08.openmp", {"runtimes": runtimes}) == expected


@pytest.mark.parametrize(
    ("periods", "throttled", "threads", "expected"),
    [
        (None, None, 2, (PASS, None)),
        (0, 0, 2, (PASS, None)),
        (10, 0, 2, (PASS, None)),
        (8, 2, 2, (PASS, None)),
        (10, 3, 2, (FAIL, "CPU_THROTTLED")),
        (10, 10, 2, (FAIL, "CPU_THROTTLED")),
        (10, 10, 1, (WARN, "QUOTA_TOO_SMALL")),
    ],
)
def test_throttling(periods: int | None, throttled: int | None, threads: int, expected: tuple[str, str | None]) -> None:
    observed = {"periods": periods, "throttled": throttled, "threads": threads, "effective": 1.0}
    assert said("C08.throttling", observed) == expected


@pytest.mark.parametrize(
    ("periods", "throttled", "threads", "expected"),
    [
        (10, 0, 1, (WARN, "QUOTA_TOO_SMALL")),  # on a busy machine the quota does not bite
        (None, None, 1, (WARN, "QUOTA_TOO_SMALL")),
        (10, 10, 1, (WARN, "QUOTA_TOO_SMALL")),
        (10, 0, 2, (WARN, "QUOTA_TOO_SMALL")),
        (10, 10, 2, (FAIL, "CPU_THROTTLED")),
    ],
)
def test_half_a_cpu_is_too_small_whether_it_bites_or_not(
    periods: int | None, throttled: int | None, threads: int, expected: tuple[str, str]
) -> None:
    observed = {"periods": periods, "throttled": throttled, "threads": threads, "effective": 0.5}
    assert said("C08.throttling", observed) == expected
