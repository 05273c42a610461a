"""The estimates of how often a healthy machine fails at a limit."""

from __future__ import annotations

import json
from statistics import NormalDist

import pytest

from benchmarks import limits
from envkit.checks import thresholds

SEEDS = json.loads(limits.SEEDS.read_text(encoding="utf-8"))


def test_every_limit_fails_less_than_one_healthy_machine_in_ten_thousand() -> None:
    found = {item.limit: item.fails for item in limits.estimates()}
    assert set(found) == {f"{row.name}.{margin.key}" for row, margin in limits.margins()}
    assert max(found.values()) <= limits.GOAL


def test_a_limit_on_a_healthy_machines_value_fails_often() -> None:
    """The limit that failed the recorded machine: its seeds alone show it."""
    fails, basis = limits._of_seeds("C14.loss", "bf16", 1e-3, SEEDS["C14"])
    assert fails > 0.1
    assert basis == "3 networks, 20 seeds each: 0.9 standard deviations at least"


@pytest.mark.parametrize("count", [20, 100])
def test_the_spread_of_an_error_follows_from_its_median_and_its_largest_value(count: int) -> None:
    normal = NormalDist(0, 2e-3)
    median, largest = normal.inv_cdf(0.75), normal.inv_cdf((1 + 0.5 ** (1 / count)) / 2)
    assert limits.half_normal(median, largest, count) == pytest.approx(2e-3)
    assert limits.half_normal(median / 2, largest, count) == pytest.approx(2e-3)
    assert limits.half_normal(median, largest / 2, count) == pytest.approx(2e-3)


def test_the_tail_is_that_of_a_normal_distribution() -> None:
    assert limits.tail(0) == 0.5
    assert limits.tail(3) == pytest.approx(1 - NormalDist().cdf(3))


@pytest.mark.parametrize("name", ["C14.loss", "C14.gradient", "C14.direction"])
def test_no_recorded_seed_is_above_the_value_that_a_margin_gives(name: str) -> None:
    for case, kinds in SEEDS["C14"]["cases"].items():
        margins = thresholds.shipped().row(name).margins
        margin = margins.get(case.partition(".")[2]) or margins["fail_above"]
        assert kinds[limits._METRICS[name]][3] <= margin.healthy["h200"]


def test_the_table_has_a_line_per_margin_and_per_row_that_lacks_one() -> None:
    lines = limits.table()
    marked = [line[0] for line in lines if line[-1] == "judgement; it can fail an image"]
    assert marked == ["C10.coherent", "C26.siblings", "C27.copy"]
    assert {line[0] for line in lines} > {f"{row.name}.{margin.key}" for row, margin in limits.margins()}
    (loss,) = [line for line in lines if line[0] == "C14.loss.bf16"]
    assert loss[1:6] == ("0.007812", "h200 0.00136 cpu 0.00021", "5.74x", "0.0284", "3.64x")
