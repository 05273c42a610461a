"""The minimum set cover, exactly: fewest sets first, then the least cost summed over them; the same way every time.

Sets are bit masks over at most a few dozen elements. Before the search, elements that another one implies and sets
that another one replaces are taken away; the search then branches on the element with the fewest sets, remembers what
it found for every rest, and cuts where elements that share no set already ask for more sets than are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

Cost = tuple[int, ...]
_Found = tuple[Cost, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set: which elements it covers (bit n = element n) and what it costs, compared place by place."""

    mask: int
    cost: Cost


def minimum_cover(candidates: Sequence[Candidate], universe: int) -> tuple[int, ...] | None:
    """Positions of the candidates of the best cover, ascending; None where some element is in no set.

    Args:
        candidates: all with costs of one length, none negative.
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
    while (cover := search.best(needed, size)) is None:
        size += 1
    return tuple(sorted(cover[1]))


def size_of_cover(masks: Sequence[int], universe: int) -> int | None:
    """How many sets the smallest cover has."""
    cover = minimum_cover([Candidate(mask, ()) for mask in masks], universe)
    return None if cover is None else len(cover)


def _undominated(candidates: Sequence[Candidate], universe: int) -> list[int]:
    """Sets that no other one replaces: by covering as much for no more cost."""
    order = sorted(
        range(len(candidates)),
        key=lambda index: (-(candidates[index].mask & universe).bit_count(), candidates[index].cost, index),
    )
    kept: list[int] = []
    for position in order:
        mask, cost = candidates[position].mask & universe, candidates[position].cost
        replaced = any(
            mask | (candidates[other].mask & universe) == candidates[other].mask & universe
            and candidates[other].cost <= cost
            for other in kept
        )
        if mask and not replaced:
            kept.append(position)
    return sorted(kept)


def _hardest(universe: int, sets: Sequence[tuple[int, int]]) -> int:
    """The elements that are not covered by themselves as soon as another one is."""
    # (the sets that hold an element, its bit)
    columns = [(sum(mark for mark, mask in sets if mask & bit), bit) for bit in _bits(universe)]
    columns.sort(key=lambda column: (column[0].bit_count(), column[1]))
    kept: list[tuple[int, int]] = []
    for holders, bit in columns:
        if not any(holders & other == other for other, _ in kept):
            kept.append((holders, bit))
    return sum(bit for _, bit in kept)


class _Search:
    """The search among sets that are worth it, over elements that are hard."""

    def __init__(self, sets: tuple[tuple[int, int, Cost], ...], universe: int) -> None:
        self._sets = sets
        self._zero: Cost = (0,) * len(sets[0][2])
        self._holders = {bit: [entry for entry in sets if entry[1] & bit] for bit in _bits(universe)}
        self._together = {bit: _union(mask for _, mask, _ in holders) for bit, holders in self._holders.items()}
        # Elements with few sets first: they decide, and they make the bound tight.
        self._order = sorted(self._holders, key=lambda bit: (len(self._holders[bit]), bit))
        self._known: dict[tuple[int, int], _Found | None] = {}
        self._largest = max(mask.bit_count() for _, mask, _ in sets)

    def bound(self, rest: int) -> int:
        """So many sets at least: elements that share no set, and elements by the largest set."""
        apart, left = 0, rest
        for bit in self._order:
            if left & bit:
                apart += 1
                left &= ~self._together[bit]
        return max(apart, -(-rest.bit_count() // self._largest))

    def best(self, rest: int, size: int) -> _Found | None:
        """The cheapest cover of a rest with at most so many sets."""
        if not rest:
            return self._zero, ()
        state = (rest, size)
        if state in self._known:
            return self._known[state]
        cheapest: _Found | None = None
        if self.bound(rest) <= size:
            bit = next(bit for bit in self._order if bit & rest)
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
