from typing import Any

import pytest

from tests.support.verdicts import CLEAN, FAIL, INCONCLUSIVE, NOISY, PASS, SKIP, WARN, found, said


def observed(both: float, *, pageable: float = 0.05, **changed: Any) -> dict[str, Any]:
    return {
        "times_ms": {"copy": 10.0, "compute": 12.0, "both": both},
        "overlap": {"pinned": 0.0, "same_stream": 0.01, "pageable": pageable},
        "exact": True,
        "cc_mode": False,
        **changed,
    }


@pytest.mark.parametrize(
    ("both", "expected"),
    [
        (12.5, (PASS, None)),
        (17.0, (WARN, "LITTLE_OVERLAP")),
        (21.5, (FAIL, "NO_OVERLAP")),
        (30.0, (FAIL, "NO_OVERLAP")),
    ],
)
def test_the_share_that_is_hidden_decides(both: float, expected: tuple[Any, Any]) -> None:
    assert said("C11.overlap", observed(both), noise=CLEAN) == expected


def test_it_informs_and_says_how_much() -> None:
    finding = found("C11.overlap", observed(13.0), noise=CLEAN)
    assert finding.metric is not None
    assert finding.metric["value"] == pytest.approx(0.9)
    assert finding.rule["gates"] is False
    assert "90% of the shorter of copy (10.0 ms) and kernels (12.0 ms)" in finding.message


def test_a_busy_machine_leaves_it_open() -> None:
    assert said("C11.overlap", observed(21.5), noise=NOISY) == (INCONCLUSIVE, "NOISY")


def test_a_pageable_copy_may_overlap() -> None:
    """The host stages it, and kernels that were queued before run meanwhile."""
    assert said("C11.overlap", observed(12.5, pageable=0.5), noise=CLEAN) == (PASS, None)


def test_one_hardware_queue_is_named_where_nothing_overlaps() -> None:
    assert (
        "CUDA_DEVICE_MAX_CONNECTIONS=1" in found("C11.overlap", observed(21.5, connections="1"), noise=CLEAN).advice[0]
    )
    assert "MAX_CONNECTIONS" not in "".join(found("C11.overlap", observed(21.5), noise=CLEAN).advice)


def test_a_stream_that_overlaps_with_itself_makes_the_method_doubtful() -> None:
    shares = {"pinned": 0.0, "same_stream": 0.4, "pageable": 0.05}
    assert said("C11.overlap", observed(12.5, overlap=shares), noise=CLEAN) == (INCONCLUSIVE, "OVERLAP_UNCLEAR")


def test_confidential_computing_is_no_fault() -> None:
    assert said("C11.overlap", observed(22.0, cc_mode=True), noise=CLEAN) == (SKIP, "CONFIDENTIAL_COMPUTING")


def test_a_copy_that_arrives_changed_fails_whatever_its_speed() -> None:
    assert said("C11.overlap", observed(12.5, exact=False), noise=NOISY) == (FAIL, "COPY_WRONG")
