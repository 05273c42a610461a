from __future__ import annotations

from typing import Any

import pytest

from envkit.verify.compare.metrics import body_factor, readings
from tests.support.launches import NOISY, record

KEY = "C14.bench.mlp.fp32@cpu"


def changed(**samples: Any) -> dict[str, Any]:
    tree: dict[str, Any] = record(2.0)
    check = next(item for item in tree["checks"] if item["id"] == "C14.bench.mlp.fp32")
    check["samples"] = {**check["samples"], **samples}
    return tree


def test_processor_time_is_the_least_sample() -> None:
    found = readings(record(2.0))
    assert list(found) == [KEY]
    assert (found[KEY].value, found[KEY].unit, found[KEY].better, found[KEY].clock) == (2.0, "ms", "lower", "cpu")
    assert readings(record(2.0, gate=NOISY))[KEY].pressure == 0.4


def test_without_it_the_metric_of_the_record_counts_with_its_gate() -> None:
    found = readings(record(2.0, cpu=False, gate=NOISY))[KEY]
    assert (found.clock, found.gate, found.name) == ("wall", NOISY, "step_time")


@pytest.mark.parametrize("values", [[], [0.0], [-1.0], [True], ["2"], "x", None])
def test_samples_that_are_none_count_as_not_there(values: Any) -> None:
    assert readings(changed(cpu_values=values))[KEY].clock == "wall"


def test_an_error_and_a_skip_give_no_metric() -> None:
    for field, value in (("verdict", "ERROR"), ("status", "skip")):
        tree: dict[str, Any] = record(2.0)
        for check in tree["checks"]:
            check[field] = value
        assert readings(tree) == {}


def test_a_repeated_body_is_told() -> None:
    assert body_factor(record(2.0)) == 1
    assert body_factor(changed(body_factor=1.5)) == 1.5
