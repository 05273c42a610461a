"""Exact rank statistics for a few launches per side. Pure: numbers in, numbers out."""

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
    """An estimate with its confidence interval and the exact confidence of that interval."""

    estimate: float
    low: float
    high: float
    confidence: float


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the exact two-sided p-value of the Mann-Whitney test, with mid-ranks for ties.

    It is the share of all assignments of the values to sides of these sizes whose rank sum is at least as far from its
    mean. Source: Mann and Whitney 1947; ties as in Lehmann, Nonparametrics, 1975, section 1.4.

    Raises:
        ValueError: a side is empty.
    """
    if not first or not second:
        raise ValueError("a side without launches cannot be compared")
    ranks = _doubled_ranks([*first, *second])
    size, total = len(first), len(ranks)
    mean = size * (total + 1)  # twice the mean rank sum, as the ranks are doubled
    distance = abs(sum(ranks[:size]) - mean)
    counts = _rank_sums(tuple(sorted(ranks)), size)
    extreme = sum(count for rank_sum, count in counts.items() if abs(rank_sum - mean) >= distance)
    return extreme / math.comb(total, size)


def smallest_p(first: int, second: int) -> float:
    """Return the smallest p-value for these numbers of launches: all values of one side are beyond the other's."""
    return min(1.0, 2 / math.comb(first + second, first))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's step-down adjustment, in the same order. Source: Holm 1979."""
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for step, index in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = reached
    return adjusted


def ratio(base: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the Hodges-Lehmann ratio of `other` to `base` (positive values), with its exact confidence interval.

    The estimate is the median of all quotients of a value of each side. The interval inverts the Mann-Whitney test, so
    only some confidences are possible: it has the smallest that is at least `confidence`, or the largest possible one
    if the sides are too small. Source: Hodges and Lehmann 1963; Bauer 1972.

    Raises:
        ValueError: a side is empty, or a value is not positive.
    """
    if not base or not other or min(*base, *other) <= 0:
        raise ValueError("a ratio needs positive values on both sides")
    quotients = sorted(after / before for before in base for after in other)
    counts, total = _u_counts(len(base), len(other)), math.comb(len(base) + len(other), len(base))
    below, reached, cut = 0, 1 - 2 * counts[0] / total, 0
    # Cut one quotient more from both ends as long as the rest keeps the confidence.
    while 2 * cut < len(quotients) - 2:
        below += counts[cut]
        if 1 - 2 * (below + counts[cut + 1]) / total < confidence:
            break
        cut += 1
        reached = 1 - 2 * (below + counts[cut]) / total
    return Interval(median(quotients), quotients[cut], quotients[-1 - cut], max(0.0, reached))


def relative_mad(values: Sequence[float]) -> float:
    """Return the median absolute deviation divided by the median; 0 for a single value.

    Raises:
        ValueError: there is no value, or the median is 0.
    """
    middle = median(values)
    if middle == 0:
        raise ValueError("a spread relative to a median of 0 is undefined")
    return median(abs(value - middle) for value in values) / abs(middle)


def launches_for(metrics: int, level: float = 0.05) -> int:
    """Return the launches per side with which a difference in one of `metrics` metrics can reach `level` after Holm."""
    size = 1
    while smallest_p(size, size) * max(1, metrics) > level:
        size += 1
    return size


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the mid-rank of every value, which is an integer."""
    counts = Counter(values)
    ranks, before = {}, 0
    for value in sorted(counts):
        ranks[value] = 2 * before + counts[value] + 1
        before += counts[value]
    return [ranks[value] for value in values]


# Without ties, all comparisons of sides of these sizes share one table.
@cache
def _rank_sums(ranks: tuple[int, ...], size: int) -> Counter[int]:
    """Return how many subsets of `size` ranks have each sum."""
    counts: list[Counter[int]] = [Counter({0: 1}), *(Counter() for _ in range(size))]
    for rank in ranks:
        # Larger subsets first, so that each rank is used once per subset.
        for smaller, larger in reversed(list(pairwise(counts))):
            for total, count in smaller.items():
                larger[total + rank] += count
    return counts[size]


def _u_counts(first: int, second: int) -> list[int]:
    """Return how many orders of two sides without ties have each value of U, from 0 to first * second."""
    sums = _rank_sums(tuple(range(1, first + second + 1)), first)
    least = first * (first + 1) // 2
    return [sums[least + value] for value in range(first * second + 1)]
