from __future__ import annotations

from envkit.checks.c26_every_gpu.show import show


def test_every_gpu_is_a_row_and_the_note_counts_them() -> None:
    observed = {"name": "NVIDIA H100", "rates": {"h2d_gb_per_s": 54.0, "d2h_gb_per_s": 53.0, "tflops": 700.0}}
    good = {"id": "C26.gpu", "subject": "gpu:0", "observed": observed, "derived": {"fraction_of_limit": 0.654}}
    silent = {"id": "C26.gpu", "subject": "gpu:1", "observed": {"outcome": "timeout"}}
    counted = {"id": "C26.coverage", "message": "measured 1 of 2 GPUs; not measured: gpu:1"}
    (sheet,) = show([good, silent, counted]).sheets
    assert sheet.rows == [
        ["gpu:0", "NVIDIA H100", "54.0", "53.0", "700", "65%", "-", "-"],
        ["gpu:1", "-", "-", "-", "-", "-", "-", "-"],
    ]
    assert sheet.notes == ("measured 1 of 2 GPUs; not measured: gpu:1.",)
    assert show([]).sheets == ()


def test_a_note_says_where_the_power_limit_costs_products() -> None:
    held = {"sm_mhz": 1500, "events": ["sw_power_cap"]}
    observed = {"name": "NVIDIA H200", "max_sm_mhz": 1980, "rates": {}, "health": held}
    check = {"id": "C26.gpu", "subject": "gpu:0", "observed": observed, "derived": {"fraction_of_limit": 0.639}}
    (sheet,) = show([check]).sheets
    (note,) = sheet.notes
    assert note.startswith("gpu:0: its power limit holds the clock at 1500 of 1980 MHz, so products reach 64% of what")
    assert show([{**check, "derived": {}}]).sheets[0].notes == ()
