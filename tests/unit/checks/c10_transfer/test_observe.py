from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

gpus: Any = import_module("envkit.smoke.gpus")


c10_transfer: Any = import_module("envkit.checks.c10_transfer.observe")


def test_rate_is_in_units_of_a_billion_bytes_per_second() -> None:
    assert c10_transfer.rate(256, 10.0) == pytest.approx(26.8435456)
    assert c10_transfer.rate(1, 0.0) is None


def test_ratio_above_one_means_pinned_is_faster() -> None:
    measured = {
        16: {"h2d_pinned": {"stats": {"median": 1.0}}, "h2d_pageable": {"stats": {"median": 1.5}}},
        64: {"h2d_pinned": {"stats": {"median": 0.0}}, "h2d_pageable": {"stats": {"median": 1.5}}},
    }
    assert c10_transfer.ratios("h2d", measured) == {"16": 1.5, "64": None}


@pytest.mark.parametrize(
    ("readings", "ends_after", "found"),
    [
        ([1, 2, 4, 4, 1], 3, {"gen": 4, "busy": True}),
        ([1, 4, 1], 1, {"gen": 4, "busy": True}),
        ([1, 1], 0, {"gen": 1, "busy": False}),
    ],
)
def test_the_link_counts_as_it_was_last_seen_under_load(
    monkeypatch: pytest.MonkeyPatch, readings: list[int], ends_after: int, found: dict[str, Any]
) -> None:
    check: Any = import_module("envkit.checks.c10_transfer.observe")
    told, asked = iter(readings), iter([False] * ends_after + [True])
    monkeypatch.setattr(gpus, "link_and_load", lambda _torch: {"gen": next(told)})
    event = SimpleNamespace(record=lambda: None, query=lambda: next(asked))
    torch = SimpleNamespace(cuda=SimpleNamespace(Event=lambda: event, synchronize=lambda: None))
    ends = SimpleNamespace(
        deciding_mib=256, copies=lambda _size: [("h2d_pinned", lambda: None), ("d2h_pinned", lambda: None)]
    )
    assert check._link_under_load(torch, ends) == {**found, "idle_gen": 1}
