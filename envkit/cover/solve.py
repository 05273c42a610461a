"""Exact minimum set cover: the fewest sets, among those the lowest total cost; deterministic.

Sets are bit masks over at most a few dozen elements. Before the search, dominated sets and elements that are implied by
others are removed. The search then branches on the element with the fewest sets, memoizes every remainder, and prunes
when the lower bound for a remainder exceeds the number of sets left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

Cost = tuple[int, ...]
_Partial = tuple[Cost, tuple[int, ...]]
"""A cover of a remainder: its cost, and the positions of its sets."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set: the elements that it covers (bit n = element n) and its cost, compared lexicographically."""

    mask: int
    cost: Cost


def minimum_cover(candidates: Sequence[Candidate], universe: int) -> tuple[int, ...] | None:
    """Return the positions of the candidates of the best cover, ascending; None if an element is in no set.

    Args:
        candidates: with costs of equal length, none negative.
        universe: the elements to cover.
    """
    if not universe:
        return ()
    kept = _undominated(candidates, universe)
    if universe & ~_union(candidates[position].mask for position in kept):
        return None
    needed = _hardest(universe, [(1 << position, candidates[position].mask) for position in kept])
    search = _Search(
        tuple((position, candidates[position].mask & needed, candidates[position].cost) for position in kept), needed
    )
    size = search.bound(needed)
    # This ends, because every element is in one of the sets. The first size with a cover is the smallest.
    while (cover := search.best(needed, size)) is None:
        size += 1
    return tuple(sorted(cover[1]))


def size_of_cover(masks: Sequence[int], universe: int) -> int | None:
    """Return the number of sets in the smallest cover; None if there is none."""
    cover = minimum_cover([Candidate(mask, ()) for mask in masks], universe)
    return None if cover is None else len(cover)


def _undominated(candidates: Sequence[Candidate], universe: int) -> list[int]:
    """Return the positions of sets that no other set dominates, which would cover as much for no higher cost."""
    # Larger sets first, of equal ones the cheaper one: only a set before it can dominate a set.
    order = sorted(
        range(len(candidates)),
        key=lambda index: (-(candidates[index].mask & universe).bit_count(), candidates[index].cost, index),
    )
    kept: list[int] = []
    for position in order:
        mask, cost = candidates[position].mask & universe, candidates[position].cost
        dominated = any(
            mask | (candidates[other].mask & universe) == candidates[other].mask & universe
            and candidates[other].cost <= cost
            for other in kept
        )
        if mask and not dominated:
            kept.append(position)
    return sorted(kept)


def _hardest(universe: int, sets: Sequence[tuple[int, int]]) -> int:
    """Return the elements that have to be searched: an element is left out if covering another one covers it, too."""
    # (the sets that hold an element, its bit)
    columns = [(sum(mark for mark, mask in sets if mask & bit), bit) for bit in _bits(universe)]
    # Elements in the fewest sets first: only an element before it can imply an element.
    columns.sort(key=lambda column: (column[0].bit_count(), column[1]))
    kept: list[tuple[int, int]] = []
    for holders, bit in columns:
        if not any(holders & other == other for other, _ in kept):
            kept.append((holders, bit))
    return sum(bit for _, bit in kept)


class _Search:
    """The search over the remaining sets and elements."""

    def __init__(self, sets: tuple[tuple[int, int, Cost], ...], universe: int) -> None:
        self._sets = sets
        self._zero: Cost = (0,) * len(sets[0][2])
        self._holders = {bit: [entry for entry in sets if entry[1] & bit] for bit in _bits(universe)}
        self._together = {bit: _union(mask for _, mask, _ in holders) for bit, holders in self._holders.items()}
        # Elements with few sets first: they decide, and they make the bound tight.
        self._order = sorted(self._holders, key=lambda bit: (len(self._holders[bit]), bit))
        self._known: dict[tuple[int, int], _Partial | None] = {}
        self._largest = max(mask.bit_count() for _, mask, _ in sets)

    def bound(self, rest: int) -> int:
        """Return a lower bound: the elements without a common set, or all elements divided by the largest set."""
        disjoint, left = 0, rest
        for bit in self._order:
            if left & bit:
                disjoint += 1
                left &= ~self._together[bit]
        return max(disjoint, -(-rest.bit_count() // self._largest))

    def best(self, rest: int, size: int) -> _Partial | None:
        """Return the cheapest cover of the remaining elements with at most `size` sets; None if there is none."""
        if not rest:
            return self._zero, ()
        state = (rest, size)
        if state in self._known:
            return self._known[state]
        cheapest: _Partial | None = None
        if self.bound(rest) <= size:
            bit = next(bit for bit in self._order if bit & rest)
            # Every cover has one of these sets, so no other choice has to be tried at this point.
            for number, mask, cost in self._holders[bit]:
                below = self.best(rest & ~mask, size - 1)
                if below is None:
                    continue
                total = (
                    tuple(own + other for own, other in zip(cost, below[0], strict=True)),
                    tuple(sorted((number, *below[1]))),
                )
                if cheapest is None or total < cheapest:
                    cheapest = total
        self._known[state] = cheapest
        return cheapest


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _bits(mask: int) -> list[int]:
    return [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
