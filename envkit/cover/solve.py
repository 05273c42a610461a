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
    if universe & ~_union(candidates[place].mask for place in kept):
        return None
    needed = _hardest(universe, [(1 << place, candidates[place].mask) for place in kept])
    search = _Search(tuple((place, candidates[place].mask & needed, candidates[place].cost) for place in kept), needed)
    size = search.bound(needed)
    while (found := search.best(needed, size)) is None:
        size += 1
    return tuple(sorted(found[1]))


def size_of_cover(masks: Sequence[int], universe: int) -> int | None:
    """How many sets the smallest cover has."""
    found = minimum_cover([Candidate(mask, ()) for mask in masks], universe)
    return None if found is None else len(found)


def _undominated(candidates: Sequence[Candidate], universe: int) -> list[int]:
    """Sets that no other one replaces: by covering as much for no more cost."""
    order = sorted(
        range(len(candidates)),
        key=lambda place: (-(candidates[place].mask & universe).bit_count(), candidates[place].cost, place),
    )
    kept: list[int] = []
    for place in order:
        mask, cost = candidates[place].mask & universe, candidates[place].cost
        replaced = any(
            mask | (candidates[one].mask & universe) == candidates[one].mask & universe and candidates[one].cost <= cost
            for one in kept
        )
        if mask and not replaced:
            kept.append(place)
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
        self._holders = {bit: [one for one in sets if one[1] & bit] for bit in _bits(universe)}
        self._together = {bit: _union(mask for _, mask, _ in found) for bit, found in self._holders.items()}
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
        place = (rest, size)
        if place in self._known:
            return self._known[place]
        found: _Found | None = None
        if self.bound(rest) <= size:
            bit = next(bit for bit in self._order if bit & rest)
            for number, mask, cost in self._holders[bit]:
                below = self.best(rest & ~mask, size - 1)
                if below is None:
                    continue
                total = (
                    tuple(one + other for one, other in zip(cost, below[0], strict=True)),
                    tuple(sorted((number, *below[1]))),
                )
                if found is None or total < found:
                    found = total
        self._known[place] = found
        return found


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _bits(mask: int) -> list[int]:
    return [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
