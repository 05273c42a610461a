from importlib import import_module
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

bench: Any = import_module("envkit.smoke.loader_bench")


def cell(num_workers: int, rate: float, *, pin: bool = False) -> dict[str, Any]:
    options = {"persistent_workers": False, "pin_memory": pin, "prefetch_factor": 2 if num_workers else None}
    return {"num_workers": num_workers, **options, "samples_per_s": rate}


def test_no_page_locked_cell_without_a_gpu() -> None:
    cells = bench.plan([0, 2, 4], has_cuda=False)
    assert cells == [
        (0, False, False, None),
        (2, True, False, None),
        (4, True, False, None),
        (2, False, False, None),
        (4, False, False, None),
    ]


def test_page_locked_cells_with_a_gpu() -> None:
    cells = bench.plan([0, 2], has_cuda=True)
    assert [item for item in cells if item[2]] == [(0, False, True, None), (2, True, True, None)]


def full(num_workers: int, rate: float, *, persistent: bool = False, prefetch: int | None = 2) -> dict[str, Any]:
    return {**cell(num_workers, rate), "persistent_workers": persistent, "prefetch_factor": prefetch}


def test_the_matrix_is_every_combination_once_and_the_telling_ones_come_first() -> None:
    cells = bench.matrix([0, 1, 2], has_cuda=False)
    assert cells[:3] == [(0, False, False, None), (1, True, False, 2), (2, True, False, 2)]
    assert len(cells) == len(set(cells)) == 1 + 2 * 2 * 2
    assert len(bench.matrix([0, 1, 2], has_cuda=True)) == 2 * (1 + 2 * 2 * 2)


def test_the_matrix_recommends_the_least_that_is_near_the_best() -> None:
    cells = [full(0, 300, prefetch=None), full(2, 950, prefetch=4), full(2, 930), full(4, 990)]
    assert bench.recommend(cells) == cells[2]


def test_effects_compare_cells_that_differ_in_one_option_alone() -> None:
    cells = [full(2, 100), full(2, 110, persistent=True), full(2, 99, prefetch=4), full(4, 500, persistent=True)]
    assert bench.effects(cells) == {"persistent_workers": 1.1, "pin_memory": None, "prefetch_factor": 0.99}


def test_a_gain_within_noise_recommends_fewer_workers() -> None:
    assert bench.recommend([cell(0, 655), cell(2, 958), cell(4, 969)])["num_workers"] == 2


def test_a_real_gain_recommends_more_workers() -> None:
    assert bench.recommend([cell(0, 239), cell(2, 405), cell(4, 782), cell(8, 1199)])["num_workers"] == 8


def test_nothing_measured_recommends_nothing() -> None:
    assert bench.recommend([]) is None


def test_gain_leaves_page_locked_cells_out() -> None:
    assert bench.gain([cell(0, 100), cell(2, 150), cell(2, 900, pin=True)]) == 1.5
    assert bench.gain([cell(0, 100)]) is None


@given(st.lists(st.tuples(st.integers(0, 16), st.floats(1, 1e5)), min_size=1, max_size=12))
def test_the_recommendation_is_near_the_best_and_never_more_than_needed(pairs: list[tuple[int, float]]) -> None:
    cells = [cell(workers, rate) for workers, rate in pairs]
    chosen = bench.recommend(cells)
    best = max(item["samples_per_s"] for item in cells)
    assert chosen["samples_per_s"] >= 0.9 * best
    assert all(item["samples_per_s"] < 0.9 * best for item in cells if item["num_workers"] < chosen["num_workers"])
