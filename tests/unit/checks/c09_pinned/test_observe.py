from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

c09_pinned: Any = import_module("envkit.checks.c09_pinned.observe")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("loader", "need"),
    [
        (None, None),
        ({}, None),
        ({"batch_bytes": MIB, "pin_memory": False}, None),
        ({"batch_bytes": 16 * MIB, "prefetch_factor": 2, "pin_memory": True}, 64 * MIB),
        ({"batch_bytes": 16 * MIB, "prefetch_factor": None}, 64 * MIB),
    ],
)
def test_pinned_need_is_prefetch_times_batch_times_two(loader: dict[str, object] | None, need: int | None) -> None:
    assert c09_pinned.loader_need(loader) == need
