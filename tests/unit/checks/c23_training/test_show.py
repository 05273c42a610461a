from __future__ import annotations

import pytest

from envkit.checks.c23_training.show import show, step_time
from tests.support.records import check, gpu_record
from tests.support.shown import named, of


def test_a_step_names_its_bottleneck_and_what_to_do() -> None:
    found = named(gpu_record(), "Where a training")
    assert found.rows[1] == ["of which waiting for data", "13.1", "32%"]
    assert found.notes[0] == "Starved share 35%: a step takes 41.2 ms, and 26.7 ms without waiting for its loader."
    assert found.notes[1].startswith("Bottleneck data: the loader is the bottleneck: starved 35% of 41.2 ms a step")
    assert found.advice[0].startswith("The loader alone is slower than the device")


def test_a_loss_that_does_not_fall_is_no_advice_on_the_bottleneck() -> None:
    tree = gpu_record()
    check(tree, "C23.training").update(verdict="FAIL", message="the loss does not fall", advice=["look at C05"])
    found = named(tree, "Where a training")
    assert found.notes[1] == "Bottleneck data."
    assert found.advice == ()


def test_parts_that_overlap_are_said_to() -> None:
    tree = gpu_record()
    check(tree, "C23.training")["observed"]["data_wait_s"] = 0.04
    step = step_time(of(tree["checks"], "C23"))
    assert step is not None
    assert step.overlapping
    assert named(tree, "Where a training").notes[2].startswith("The host waits for data while the device")


def test_a_step_is_read() -> None:
    checks = gpu_record()["checks"]
    step = step_time(of(checks, "C23"))
    assert step is not None
    assert step.starved == pytest.approx(1 - 26.7 / 41.2)
    assert [name for name, _ in step.parts] == ["data_wait", "h2d", "compute"]


def test_options_of_a_step_are_rows_with_the_default_marked() -> None:
    observed = {"default": "foreach", "took_ms": {"loop": 6.0, "fused": 1.0}, "speed_up": {"loop": 1.0, "fused": 6.0}}
    (sheet,) = show(
        [{"id": "C23.optimizer", "observed": {**observed, "default": "loop"}, "advice": ["Pass it."]}]
    ).sheets
    assert sheet.rows == [["AdamW", "loop", "6", "1.00x", "yes"], ["AdamW", "fused", "1", "6.00x", ""]]
    assert sheet.advice == ("Pass it.",)
