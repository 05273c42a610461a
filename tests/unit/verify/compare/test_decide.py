from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.verify.compare.decide import Change, Row, Rule, compare, overall
from tests.support.launches import NOISY, side

QUIET = [1.00, 1.01, 0.99, 1.02, 0.98]
RULE = Rule.shipped()


def only(rows: tuple[Row, ...]) -> Row:
    (row,) = rows
    return row


def times(factor: float, values: list[float] = QUIET) -> list[float]:
    return [factor * value for value in values]


@pytest.mark.parametrize(
    ("factor", "better", "expected"),
    [
        (1.25, "lower", Change.REGRESSION),
        (1.25, "higher", Change.IMPROVEMENT),
        (0.80, "lower", Change.IMPROVEMENT),
        (0.80, "higher", Change.REGRESSION),
        (1.05, "lower", Change.SAME),
        (1.05, "higher", Change.SAME),
        (1.00, "lower", Change.SAME),
    ],
)
def test_which_way_is_better_decides_and_a_small_change_is_none(factor: float, better: str, expected: Change) -> None:
    assert only(compare(side(QUIET, better=better), side(times(factor), better=better))).change is expected


def test_a_regression_carries_its_interval_and_both_p_values() -> None:
    row = only(compare(side(QUIET), side(times(1.25))))
    assert row.interval is not None
    assert row.interval.low < 1.25 < row.interval.high
    assert row.p == row.p_holm == pytest.approx(2 / 252)
    assert row.least == pytest.approx(0.10)
    assert "10% or more counts" in row.reason


def test_four_launches_are_too_few_and_it_says_so() -> None:
    row = only(compare(side(QUIET[:4]), side(times(2.0))))
    assert row.change is Change.INCONCLUSIVE
    assert row.reason == "4 and 5 launches are usable, 5 per side are needed"


def test_noise_is_never_silent() -> None:
    wild = [1.0, 1.3, 0.8, 1.6, 0.7]
    row = only(compare(side(wild), side(wild[::-1])))
    assert row.change is Change.INCONCLUSIVE
    assert "too noisy: only a change above" in row.reason
    wide = [1.0, 1.0, 1.0, 1.3, 1.3]
    row = only(compare(side(wide), side(wide)))
    assert row.change is Change.INCONCLUSIVE
    assert "the interval includes more than" in row.reason


def test_a_change_within_three_spreads_is_no_regression() -> None:
    spread = [1.0, 1.1, 0.9, 1.12, 0.88]  # relative MAD 0.1
    row = only(compare(side(spread), side(times(1.27, spread))))
    assert row.least == pytest.approx(0.3)
    assert row.change is not Change.REGRESSION


def test_with_many_metrics_five_launches_cannot_show_anything_and_six_can() -> None:
    names = [f"C14.bench.m{number}" for number in range(7)]

    def launches(values: list[float]) -> list[dict[str, object]]:
        return [{f"{name}@cpu": side([value], name)[0][f"{name}@cpu"] for name in names} for value in values]

    five = compare(launches(QUIET), launches(times(1.5)))  # type: ignore[arg-type]  # a launch holds readings only
    assert {row.change for row in five} == {Change.INCONCLUSIVE}
    assert "p cannot be below 0.056; use more with --launches" in five[0].reason
    six = compare(launches([*QUIET, 1.0]), launches(times(1.5, [*QUIET, 1.0])))  # type: ignore[arg-type]  # as above
    assert overall(six) is Change.REGRESSION


def test_a_wall_clock_counts_in_quiet_launches_alone() -> None:
    quiet = side(QUIET, clock="wall")
    loud = side([9.0] * 3, clock="wall", gate=NOISY)
    row = only(compare([*quiet, *loud], side(times(1.25), clock="wall")))
    assert (row.change, row.left_out, row.first) == (Change.REGRESSION, 3, tuple(QUIET))
    row = only(compare(loud, side(QUIET, clock="wall")))
    assert row.reason == (
        "0 and 5 launches are usable, 5 per side are needed; 3 were left out because the machine was busy"
    )


def test_processor_time_counts_in_the_calmer_half() -> None:
    calm = [side([value], gate=NOISY, pressure=0.3)[0] for value in QUIET]
    wild = [side([3.0 * value], gate=NOISY, pressure=0.9)[0] for value in QUIET]
    row = only(compare([*wild, *calm], side(QUIET)))
    assert (row.change, sorted(row.first), row.left_out) == (Change.SAME, sorted(QUIET), 5)


def test_launches_are_chosen_by_the_noise_and_never_by_the_value() -> None:
    busy = [side([value], gate=NOISY, pressure=0.5)[0] for value in [*QUIET, *times(2.0)]]
    first = only(compare(busy, side(QUIET))).first
    shuffled = [side([1000 - value], gate=NOISY, pressure=0.5)[0] for value in [*QUIET, *times(2.0)]]
    second = only(compare(shuffled, side(QUIET))).first
    assert [1000 - value for value in second] == pytest.approx(list(first))


@given(st.integers(0, 10_000))
def test_the_sides_may_be_exchanged(seed: int) -> None:
    order = random.Random(seed)
    first = [order.uniform(0.5, 2) for _ in range(5)]
    second = [order.uniform(0.5, 2) for _ in range(6)]
    there, back = only(compare(side(first), side(second))), only(compare(side(second), side(first)))
    assert there.p == back.p
    assert {there.change, back.change} != {Change.REGRESSION}


@given(st.lists(st.floats(0.9, 1.1), min_size=5, max_size=8), st.lists(st.floats(0.9, 1.1), min_size=5, max_size=8))
def test_same_is_only_said_where_the_interval_excludes_what_counts(first: list[float], second: list[float]) -> None:
    row = only(compare(side(first), side(second)))
    if row.change is Change.SAME:
        assert row.interval is not None
        assert row.least is not None
        assert row.interval.high <= 1 + row.least <= 1 + RULE.resolution


def test_the_worst_row_speaks_for_all_and_nothing_is_inconclusive() -> None:
    assert overall(()) is Change.INCONCLUSIVE
    mixed = (*compare(side(QUIET), side(times(1.5))), *compare(side(QUIET[:2]), side(QUIET)))
    assert overall(mixed) is Change.REGRESSION
    assert overall(mixed[1:]) is Change.INCONCLUSIVE
    better = (*compare(side(QUIET), side(times(0.5))), *compare(side(QUIET), side(QUIET)))
    assert overall(better) is Change.IMPROVEMENT
