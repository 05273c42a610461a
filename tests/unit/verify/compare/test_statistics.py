from __future__ import annotations

import itertools
import math
from fractions import Fraction
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.verify.compare.statistics import (
    holm,
    launches_for,
    mann_whitney,
    ratio,
    relative_mad,
    smallest_p,
)

TIED = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=5)
FREE = st.lists(st.floats(0.5, 50), min_size=1, max_size=6)


def enumerated(first: list[float], second: list[float]) -> float:
    """The same test by its definition: every way to deal the values, mid-ranks by counting."""
    values = [*first, *second]
    ranks = [
        sum(other < value for other in values) + Fraction(1 + sum(other == value for other in values), 2)
        for value in values
    ]
    mean = Fraction(len(first) * (len(values) + 1), 2)
    seen = abs(sum(ranks[: len(first)]) - mean)
    sums = [sum(ranks[place] for place in dealt) for dealt in itertools.combinations(range(len(values)), len(first))]
    return sum(abs(found - mean) >= seen for found in sums) / len(sums)


@given(TIED, TIED)
def test_the_test_is_the_enumeration_of_its_definition_ties_included(first: list[float], second: list[float]) -> None:
    assert mann_whitney(first, second) == pytest.approx(enumerated(first, second), abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Lehmann, Nonparametrics, 1975, table B: 2 / C(n + m, n) for complete separation.
        ([1, 2, 3], [4, 5, 6], 0.1),
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        # U = 1 and U = 2 with five per side: 4 and 8 of 252 orders.
        ([1, 2, 3, 4, 6], [5, 7, 8, 9, 10], 4 / 252),
        ([1, 2, 3, 4, 7], [5, 6, 8, 9, 10], 8 / 252),
        ([1, 1], [1, 1], 1.0),
    ],
)
def test_known_values(first: list[float], second: list[float], expected: float) -> None:
    assert mann_whitney(first, second) == pytest.approx(expected, abs=1e-12)


@given(FREE, FREE, st.floats(0.01, 100))
def test_neither_order_nor_scale_nor_sides_change_the_p_value(
    first: list[float], second: list[float], scale: float
) -> None:
    p = mann_whitney(first, second)
    assert 0 < p <= 1
    assert p == mann_whitney(second, first)
    assert p == mann_whitney(first[::-1], second)
    if len({*first, *second}) == len({value * scale for value in (*first, *second)}):
        assert p == mann_whitney([value * scale for value in first], [value * scale for value in second])


@given(st.integers(2, 7), st.integers(2, 7))
def test_under_no_change_an_alarm_is_as_rare_as_it_says(first: int, second: int) -> None:
    values = [float(value) for value in range(first + second)]
    p_values = []
    for dealt in itertools.combinations(range(first + second), first):
        side = [values[place] for place in dealt]
        p_values.append(mann_whitney(side, [value for value in values if value not in side]))
    for level in (0.01, 0.05, 0.2):
        assert sum(p <= level for p in p_values) <= level * len(p_values) + 1e-9
    assert min(p_values) == pytest.approx(smallest_p(first, second))


def test_many_launches_stay_quick_and_exact() -> None:
    assert mann_whitney(list(range(30)), list(range(30, 60))) == pytest.approx(2 / math.comb(60, 30))


def test_an_empty_side_is_refused() -> None:
    with pytest.raises(ValueError, match="without launches"):
        mann_whitney([], [1.0])
    with pytest.raises(ValueError, match="positive"):
        ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="median of 0"):
        relative_mad([0.0])


def test_holm_by_hand() -> None:
    # 4 x 0.01, 3 x 0.02, then 2 x 0.03 = 0.06 which may not fall below, and 1 x 0.9.
    assert holm([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, found in zip(p_values, adjusted, strict=True):
        assert p <= found <= min(1.0, len(p_values) * p)
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    assert [adjusted[place] for place in order] == sorted(adjusted)


@given(FREE, FREE)
def test_a_ratio_lies_in_its_interval_and_turns_round(base: list[float], other: list[float]) -> None:
    found, back = ratio(base, other), ratio(other, base)
    assert found.low <= found.estimate <= found.high
    assert back.low == pytest.approx(1 / found.high)
    assert back.high == pytest.approx(1 / found.low)
    assert back.confidence == found.confidence < 1


@given(st.integers(2, 5), st.integers(2, 5), st.floats(0.5, 2))
def test_the_interval_covers_the_truth_as_often_as_it_says(first: int, second: int, truth: float) -> None:
    values = [1.01**place for place in range(first + second)]
    covered, claimed = [], set()
    for dealt in itertools.combinations(range(first + second), first):
        base = [values[place] for place in dealt]
        other = [truth * value for place, value in enumerate(values) if place not in dealt]
        found = ratio(base, other, 0.8)
        covered.append(found.low <= truth * (1 + 1e-9) and truth <= found.high * (1 + 1e-9))
        claimed.add(found.confidence)
    assert len(claimed) == 1
    assert sum(covered) / len(covered) >= claimed.pop() - 1e-9


def test_five_launches_per_side_have_an_interval_of_97_percent_and_three_none_of_95() -> None:
    base = [1.0, 1.1, 1.2, 1.3, 1.4]
    found = ratio(base, [1.5 * value for value in base])
    assert found.estimate == pytest.approx(1.5)
    # 1 - 2 x P(U <= 2) = 1 - 2 x 4 / 252.
    assert found.confidence == pytest.approx(1 - 8 / 252)
    assert ratio([1.0, 2, 3], [4.0, 5, 6]).confidence == pytest.approx(0.9)


def test_the_launches_that_are_needed_grow_with_the_metrics() -> None:
    assert [launches_for(count) for count in (1, 6, 7, 23, 24)] == [4, 5, 6, 6, 7]


@given(st.lists(st.floats(1, 100), min_size=1, max_size=9))
def test_the_spread_is_a_share_of_the_median(values: list[float]) -> None:
    assert relative_mad(values) == pytest.approx(median(abs(v - median(values)) for v in values) / median(values))
    assert relative_mad([3 * value for value in values]) == pytest.approx(relative_mad(values))
