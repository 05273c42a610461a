"""A session's steps: one that fails or has no time does not end the others, and each leaves a figure."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest

from benchmarks.gpu_calibration import Session
from benchmarks.gpu_session import STEPS, Steps, chosen, go_through


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    begin = time.monotonic()
    return Steps(Session(tmp_path, tmp_path, "session", begin), begin + 500.0, standin=False)


def figures(steps: Steps) -> dict[str, float]:
    return {item.name: item.figure for item in steps.figures}


def test_a_step_that_fails_does_not_end_the_others(steps: Steps, tmp_path: Path) -> None:
    def fails(_steps: Steps) -> None:
        raise OSError("no space left")

    go_through(steps, {"first": fails, "second": lambda made: made.shows("second", holds=True, against="")})
    assert figures(steps) == {"first": 0.0, "second": 1.0}
    rows = [json.loads(line) for line in (tmp_path / "session.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["name"]) for row in rows] == [("error", "first"), ("step", "first"), ("step", "second")]


def test_a_step_for_which_there_is_no_time_is_missed(steps: Steps) -> None:
    steps.end = time.monotonic() + 1.0
    go_through(steps, {"late": lambda made: made.shows("late", holds=True, against="")})
    assert figures(steps) == {"late": 0.0}


def test_a_limit_ends_with_the_session(steps: Steps) -> None:
    assert steps.limit(60.0) == 60.0
    steps.end = time.monotonic() + 20.0
    assert 10.0 < steps.limit(60.0) < 20.0


def test_without_an_image_its_steps_are_missed(steps: Steps) -> None:
    go_through(steps, {name: STEPS[name] for name in ("CUDA", "run", "quick")})
    assert figures(steps) == {"CUDA": 0.0, "run": 0.0, "quick": 0.0}


def test_times_of_the_model_are_no_figures(steps: Steps) -> None:
    steps.took("quick", 20.0, 35.0, "")
    steps.standin = True
    steps.took("standard", 900.0, 180.0, "")
    assert figures(steps) == {"quick": 20.0}


def test_chosen_steps_keep_their_order_and_bring_the_image_where_they_need_it() -> None:
    assert list(chosen("quick,CUDA")) == ["image", "CUDA", "quick"]
    assert list(chosen("beside,faults")) == ["faults", "beside"]


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no step standart; there are image, CUDA"):
        chosen("standart")
