from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.c28_links.show import show
from envkit.checks.catalog import machine_codes
from tests.support.verdicts import CLEAN, ERROR, FAIL, INCONCLUSIVE, PASS, WARN, found, said

WAYS: dict[str, Any] = {
    "bytes": 1 << 27,
    "up_gb_per_s": 54.0,
    "down_gb_per_s": 53.0,
    "both_gb_per_s": 98.0,
    "gain": 1.83,
    "exact": True,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (PASS, None)),
        ({"gain": 1.0}, (WARN, "COPIES_TAKE_TURNS")),
        ({"exact": False}, (FAIL, "COPY_WRONG")),
        ({"gain": None}, (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_both_ways_at_once_are_faster_than_in_turn(changed: dict[str, Any], expected: Any) -> None:
    assert said("C28.both_ways", {**WAYS, **changed}, noise=CLEAN) == expected


def links(active: int, links: int = 18, to: Any = ("switch",), **errors: int) -> dict[str, Any]:
    return {"bus": "1", "links": links, "active": active, "gb_per_s": 26.6, "to": list(to), "errors": errors}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([links(18)] * 8, (PASS, None)),
        ([*[links(18)] * 7, links(17)], (WARN, "NVLINK_INACTIVE")),
        ([*[links(18)] * 7, links(8)], (FAIL, "NVLINKS_INACTIVE")),
        ([*[links(18)] * 7, None], (FAIL, "NVLINKS_INACTIVE")),
        ([links(9)] * 8, (WARN, "NVLINK_INACTIVE")),  # all alike, and a switch joins every link of them
        ([links(4, 12, ["2"]), links(4, 12, ["1"])], (PASS, None)),  # one bridge of three
        ([links(0, 12, [])] * 2, (PASS, None)),  # no bridge
        ([links(18), links(18, recovery=3)], (WARN, "NVLINK_ERRORS")),
        ([links(18), links(18, replay=3)], (PASS, None)),
    ],
)
def test_links_that_are_down_are_a_fault_of_the_machine(states: list[Any], expected: Any) -> None:
    assert said("C28.nvlink", {"links": states}) == expected
    assert "NVLINKS_INACTIVE" in machine_codes()


def pair(source: int, target: int, rate: float = 350.0, **changed: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "gb_per_s": rate, "exact": True, "peer_access": True, **changed}


def matrix(*pairs: dict[str, Any], **changed: Any) -> tuple[str, Any]:
    return said("C28.matrix", {"outcome": "answered", "text": None, "pairs": list(pairs), **changed})


def test_copies_between_gpus_are_exact_and_the_same_both_ways() -> None:
    assert matrix(pair(0, 1), pair(1, 0)) == (PASS, None)
    assert matrix(pair(0, 1), pair(1, 0, exact=False)) == (FAIL, "COPY_WRONG")
    assert matrix(pair(0, 1), pair(1, 0, 120.0)) == (WARN, "LINK_ONE_SIDED")
    # Pairs may be wired differently.
    assert matrix(pair(0, 1), pair(1, 0), pair(0, 2, 20.0), pair(2, 0, 20.0)) == (PASS, None)
    assert matrix(pair(0, 1, 20.0, peer_access=False), pair(1, 0, 20.0)) == (WARN, "NO_PEER_ACCESS")
    assert matrix() == (ERROR, "MALFORMED_OBSERVATION")
    broken = found("C28.matrix", {"outcome": "failed", "text": "x\nRuntimeError: peer mapping failed"})
    assert (broken.verdict, broken.reason_code) == (FAIL, "GPU_COPIES_FAIL")
    assert broken.message == "copies between GPUs: RuntimeError: peer mapping failed"
    assert said("C28.matrix", {"outcome": "timeout", "text": "no answer in 60 s"})[0] == INCONCLUSIVE


def test_the_matrix_has_a_row_and_a_column_per_gpu() -> None:
    observed = {"pairs": [pair(0, 1), pair(1, 0, 340.0)]}
    (both, between) = show(
        [{"id": "C28.both_ways", "observed": WAYS}, {"id": "C28.matrix", "observed": observed}]
    ).sheets
    assert both.rows == [["54.0", "53.0", "98.0"]]
    assert between.rows == [["gpu:0", "-", "350.0"], ["gpu:1", "340.0", "-"]]
