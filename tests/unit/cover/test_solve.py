"""The set cover against brute force, and its time on instances as hard as fleets get."""

import random
import time
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from envkit.cover.solve import Candidate, Cost, minimum_cover, size_of_cover

ELEMENTS = 7
costs = st.tuples(st.integers(0, 2), st.integers(0, 3))
candidates = st.lists(st.builds(Candidate, st.integers(0, (1 << ELEMENTS) - 1), costs), max_size=8)


def total(found: tuple[int, ...], among: list[Candidate]) -> Cost:
    return tuple(sum(among[one].cost[place] for one in found) for place in range(2))


def brute(among: list[Candidate], universe: int) -> tuple[int, Cost] | None:
    """Number of sets and cost of the best cover, by trying every choice."""
    for size in range(len(among) + 1):
        fits = [
            total(chosen, among)
            for chosen in combinations(range(len(among)), size)
            if universe & ~union(chosen, among) == 0
        ]
        if fits:
            return size, min(fits)
    return None


def union(chosen: tuple[int, ...], among: list[Candidate]) -> int:
    found = 0
    for one in chosen:
        found |= among[one].mask
    return found


@given(candidates, st.integers(0, (1 << ELEMENTS) - 1))
def test_it_is_as_small_and_as_cheap_as_brute_force_finds(among: list[Candidate], universe: int) -> None:
    best, found = brute(among, universe), minimum_cover(among, universe)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert universe & ~union(found, among) == 0
    assert (len(found), total(found, among)) == best


@given(candidates, st.randoms())
def test_the_order_of_the_sets_changes_neither_number_nor_cost(among: list[Candidate], chance: random.Random) -> None:
    universe = union(tuple(range(len(among))), among)
    other = list(among)
    chance.shuffle(other)
    first, second = minimum_cover(among, universe), minimum_cover(other, universe)
    assert first is not None
    assert second is not None
    assert (len(first), total(first, among)) == (len(second), total(second, other))


def test_greed_is_not_enough() -> None:
    greedy = Candidate(0b011110, (0,))
    halves = (Candidate(0b000111, (5,)), Candidate(0b111000, (5,)))
    assert minimum_cover([greedy, *halves], 0b111111) == (1, 2)


def test_nothing_to_cover_needs_nothing_and_what_no_set_has_cannot_be_covered() -> None:
    assert minimum_cover([], 0) == ()
    assert minimum_cover([Candidate(0b01, (0,))], 0b11) is None
    assert size_of_cover([0b01, 0b10], 0b11) == 2
    assert size_of_cover([0b01], 0b11) is None


def grid(seed: int) -> list[Candidate]:
    """64 classes: 8 GPU generations by 8 steps of drivers; a build runs on some neighboring ones of each."""
    chance = random.Random(seed)
    cells = [(arch, step) for arch in range(8) for step in range(8)]
    found = []
    for _ in range(chance.choice((20, 40, 80, 160))):
        arch, step = chance.randrange(8), chance.randrange(8)
        last_arch, last_step = arch + chance.randrange(4), step + chance.randrange(5)
        mask = sum(1 << at for at, (a, s) in enumerate(cells) if arch <= a <= last_arch and step <= s <= last_step)
        found.append(Candidate(mask, (chance.randrange(2), chance.randrange(40))))
    return found


def test_sixty_four_classes_in_less_than_two_seconds_each() -> None:
    for seed in range(20):
        among = grid(seed)
        universe = union(tuple(range(len(among))), among)
        began = time.process_time()
        found = minimum_cover(among, universe)
        assert time.process_time() - began < 2
        assert found is not None
        assert universe & ~union(found, among) == 0
