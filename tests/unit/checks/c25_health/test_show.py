from __future__ import annotations

from typing import Any

from envkit.checks.c25_health.show import show


def row(part: str, subject: str, **observed: Any) -> dict[str, Any]:
    return {"id": f"C25.{part}", "subject": subject, "observed": observed}


def test_each_gpu_has_a_row_and_what_it_does_not_tell_is_a_dash() -> None:
    found = show(
        [
            row("device", "gpu:0", state="answers"),
            row("remaps", "gpu:0", corrected=1, uncorrected=2),
            row("ecc", "gpu:0", volatile_uncorrected=0, aggregate_uncorrected=2),
            row("power", "gpu:0", limit_w=650.0, default_w=700.0),
            row("device", "gpu:1", state="lost"),
            {"id": "C25.replays", "subject": "gpu:1", "observed": None},
        ]
    )
    assert found.sheets[0].rows == [["0", "3", "-", "0", "2", "650", "-"], ["1", "-", "-", "-", "-", "-", "-"]]


def test_without_a_gpu_nothing_is_shown() -> None:
    assert show([]).sheets == show([{"id": "C25", "subject": "host", "observed": {}}]).sheets == ()
