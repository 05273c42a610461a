"""Exact rank statistics for a handful of launches per side. Pure: plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval and the confidence that the interval really has."""

    estimate: float
    low: float
    high: float
    confidence: float


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The exact two-sided p-value of the Mann-Whitney test, ties by mid-ranks.

    It is the share of all ways to deal the values to sides of these sizes whose rank sum lies as far from its mean, or
    farther. Source: Mann and Whitney 1947; ties as in Lehmann, Nonparametrics, 1975, section 1.4.

    Raises:
        ValueError: a side is empty.
    """
    if not first or not second:
        raise ValueError("a side without launches cannot be compared")
    ranks = _doubled_ranks([*first, *second])
    size, total = len(first), len(ranks)
    mean = size * (total + 1)  # twice the mean rank sum, as the ranks are doubled
    distance = abs(sum(ranks[:size]) - mean)
    ways = _rank_sums(tuple(sorted(ranks)), size)
    extreme = sum(count for rank_sum, count in ways.items() if abs(rank_sum - mean) >= distance)
    return extreme / math.comb(total, size)


def smallest_p(first: int, second: int) -> float:
    """The smallest p-value that so many launches can give: each value of a side beyond all of the other."""
    return min(1.0, 2 / math.comb(first + second, first))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given. Source: Holm 1979."""
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for step, index in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = reached
    return adjusted


def ratio(base: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> Interval:
    """The Hodges-Lehmann ratio of `other` to `base` (positive values), with its exact confidence interval.

    The estimate is the median of all quotients of a value of each side; the interval inverts the Mann-Whitney test, so
    its confidence is one of few: the smallest that is not below `confidence`, or the largest there is where the sides
    are too small for that. Source: Hodges and Lehmann 1963; Bauer 1972.

    Raises:
        ValueError: a side is empty, or a value is not positive.
    """
    if not base or not other or min(*base, *other) <= 0:
        raise ValueError("a ratio needs positive values on both sides")
    quotients = sorted(after / before for before in base for after in other)
    ways, whole = _u_counts(len(base), len(other)), math.comb(len(base) + len(other), len(base))
    below, reached, cut = 0, 1 - 2 * ways[0] / whole, 0
    while 2 * cut < len(quotients) - 2:
        below += ways[cut]
        if 1 - 2 * (below + ways[cut + 1]) / whole < confidence:
            break
        cut += 1
        reached = 1 - 2 * (below + ways[cut]) / whole
    return Interval(median(quotients), quotients[cut], quotients[-1 - cut], max(0.0, reached))


def relative_mad(values: Sequence[float]) -> float:
    """Median absolute deviation over the median; 0 for a single value.

    Raises:
        ValueError: there is no value, or their median is 0.
    """
    middle = median(values)
    if middle == 0:
        raise ValueError("a spread relative to 0 means nothing")
    return median(abs(value - middle) for value in values) / abs(middle)


def launches_for(metrics: int, level: float = 0.05) -> int:
    """Launches per side from which a difference in one of so many metrics can reach `level` after Holm."""
    size = 1
    while smallest_p(size, size) * max(1, metrics) > level:
        size += 1
    return size


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the mid-rank of every value, which is a whole number."""
    counts = Counter(values)
    places, before = {}, 0
    for value in sorted(counts):
        places[value] = 2 * before + counts[value] + 1
        before += counts[value]
    return [places[value] for value in values]


@cache
def _rank_sums(ranks: tuple[int, ...], size: int) -> Counter[int]:
    """Return how many subsets of `size` ranks have each sum."""
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter() for _ in range(size))]
    for rank in ranks:
        for smaller, larger in reversed(list(pairwise(ways))):
            for total, count in smaller.items():
                larger[total + rank] += count
    return ways[size]


def _u_counts(first: int, second: int) -> list[int]:
    """Return how many orders of two sides without ties have each value of U, from 0 to first * second."""
    sums = _rank_sums(tuple(range(1, first + second + 1)), first)
    least = first * (first + 1) // 2
    return [sums[least + value] for value in range(first * second + 1)]
