"""Which wheels are wrong for a machine: the pairs that are asked, and the words for a pick."""

from dataclasses import replace

import pytest

from benchmarks._wheel_fit import Pick
from benchmarks.torch_pickers import Pair, Verdict, evidence, kind, our_pick, pairs, verdict
from envkit.facts.load import load

FACTS = load()
V100 = Pair("535.104.05", "Tesla V100", "7.0")


def test_the_pairs_are_the_same_for_a_seed_and_can_exist() -> None:
    drawn = pairs(FACTS, 200, 1)
    assert drawn == pairs(FACTS, 200, 1) != pairs(FACTS, 200, 2)
    assert len(set(drawn)) == 200
    limits = {gpu.capability: (gpu.min_driver_branch or 0, gpu.last_driver_branch or 999) for gpu in FACTS.gpus}
    for one in drawn:
        least, most = limits[one.capability]
        assert least <= int(one.driver.partition(".")[0]) <= most


@pytest.mark.parametrize(
    ("pick", "pair", "expected"),
    [
        (Pick("2.14.1", "+cu126"), V100, "runs"),
        (Pick("2.15.0", "+cu132"), replace(V100, driver="610.43.02"), "no code"),
        (Pick("2.15.0", "+cu132"), replace(V100, gpu="T4", capability="7.5"), "driver"),
        (Pick("2.4.1", "+cu129"), V100, "not published"),
        (Pick("2.15.0", "+cpu"), V100, "CPU"),
        (None, V100, "refused wrongly"),
        (None, Pair("470.57.02", "Tesla K80", "3.0"), "refused rightly"),
    ],
)
def test_kind(pick: Pick | None, pair: Pair, expected: str) -> None:
    assert kind(verdict(pick, pair, FACTS)) == expected


def test_a_wheel_whose_cudnn_dropped_the_gpu_is_a_kind_of_its_own() -> None:
    assert kind(Verdict(Pick("2.9.1", "+cu128"), ("cuDNN 9.13.0.50 dropped sm_70",))) == "no cuDNN"


def test_envkit_answers_for_the_pair() -> None:
    assert kind(verdict(our_pick(V100, FACTS), V100, FACTS)) == "runs"
    assert our_pick(Pair("470.57.02", "Tesla K40", "3.5"), FACTS) is None


def test_a_pick_is_explained_by_its_row_with_grade_and_source() -> None:
    (line,) = evidence(Pick("2.8.0", "+cu129"), FACTS)
    assert line.startswith("facts row 2.8.0 12.9 pytorch linux-64: sm_70 sm_75")
    assert "cited: pytorch/test-infra" in line
    assert list(evidence(Pick("2.4.1", "+cu129"), FACTS)) == []
