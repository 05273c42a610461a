from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.c12_loader.show import loadings, show
from tests.support.records import check, gpu_record
from tests.support.shown import named, of


def test_the_loader_is_recommended_for_this_machine_with_the_effect_of_each_option() -> None:
    found = named(gpu_record(), "Data loading")
    use, effects, left = found.notes[:3]
    assert use == (
        "Recommended on this machine, bound by decoding: num_workers=8, prefetch_factor=2, persistent_workers=True:"
        " 3904 samples/s; up to 6.08x the throughput of num_workers=0; the image declares 4 workers."
    )
    assert effects == (
        "Effect of each option, bound by decoding: prefetch_factor 1.02x, persistent_workers 1.23x, pin_memory 0.96x."
    )
    assert left == "Time limit: 26 of 27 settings were measured, bound by decoding."
    assert found.noisy


def test_the_declared_number_of_workers_is_not_repeated_where_it_is_the_recommended_one() -> None:
    tree = gpu_record()
    check(tree, "C12.matrix.cpu")["observed"]["declared_num_workers"] = 8
    assert "the image declares" not in named(tree, "Data loading").notes[0]


def test_loaders_are_read() -> None:
    checks = gpu_record()["checks"]
    decoding, waiting = loadings(of(checks, "C12"))
    assert (decoding.workload, decoding.recommended, decoding.noisy) == ("cpu", 8, False)
    assert (waiting.workload, waiting.recommended, waiting.noisy) == ("io", 16, True)


def test_of_two_sweeps_over_one_workload_the_larger_is_shown() -> None:
    checks = gpu_record()["checks"]
    quick = [item for item in checks if not item["id"].startswith("C12.matrix")]
    assert [(item.workload, len(item.cells)) for item in loadings(of(checks, "C12"))] == [("cpu", 26), ("io", 26)]
    assert [(item.workload, len(item.cells)) for item in loadings(of(quick, "C12"))] == [("cpu", 8), ("io", 8)]
    assert loadings(of(quick, "C12"))[0].options == (
        ("num_workers", 8),
        ("prefetch_factor", 2),
        ("persistent_workers", True),
    )


def test_the_users_data_are_named_beside_the_recommendation_for_them() -> None:
    tree = gpu_record()
    for item in [one for one in tree["checks"] if one["id"].startswith("C12.")]:
        if item["id"] == "C12.throughput.cpu":
            item["id"], item["observed"]["workload"] = "C12.throughput.data", "data"
        elif item["id"] == "C12.throughput.io":
            item["id"], item["message"] = "C12.data", "the files of --data: 3 samples"
            item["observed"] = {}
        else:
            tree["checks"].remove(item)
    sheet = named(tree, "Data loading")
    assert sheet.notes[0] == "Measured with your data: the files of --data: 3 samples."
    assert sheet.notes[1].startswith("Recommended on this machine, from your files: num_workers=8")
    assert {row[0] for row in sheet.rows} == {"your files"}


def settings(*cells: tuple[int, float], left: int = 0, gain: float | None = None, use: int = 0) -> list[dict[str, Any]]:
    """Return the check of a sweep: cells of (num_workers, rate), settings left out, the gain, the recommendation."""
    options = {"persistent_workers": False, "pin_memory": False}
    measured = [{"num_workers": count, "samples_per_s": rate, "prefetch_factor": 2, **options} for count, rate in cells]
    skipped = [{"num_workers": 0, "prefetch_factor": 4, **options}] * left
    observed = {
        "workload": "cpu",
        "cells": measured,
        "cells_left_out": skipped,
        "recommended": {"num_workers": use, **options},
        "samples_per_s": dict(cells)[use],
        "best_workers_over_none": gain,
    }
    return [{"id": "C12.matrix.cpu", "observed": observed}]


def test_where_no_workers_are_recommended_their_throughput_is_no_gain() -> None:
    shown = show(settings((0, 330.0), (2, 307.0), gain=0.93))
    assert shown.sheets[0].notes == (
        "Recommended on this machine, bound by decoding: num_workers=0: 330 samples/s; workers reach 0.93x of that.",
    )
    assert [tile.note for tile in shown.tiles] == ["330 samples/s, bound by decoding"]


@pytest.mark.parametrize("gain", [None, 0.97, 1.0])
def test_a_gain_that_is_none_is_left_out(gain: float | None) -> None:
    """Pinned memory may be what makes workers the best setting, and the gain is without it."""
    (note,) = show(settings((0, 100.0), (2, 97.0), gain=gain, use=2)).sheets[0].notes
    assert note == "Recommended on this machine, bound by decoding: num_workers=2: 97 samples/s."


def test_a_time_limit_says_what_was_measured_and_which_values_were_not() -> None:
    notes = show(settings((0, 330.0), (2, 660.0), left=15, gain=2.0, use=2)).sheets[0].notes
    assert notes[-1] == "Time limit: 2 of 17 settings were measured, bound by decoding; none with prefetch_factor=4."
