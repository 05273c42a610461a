from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
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


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_no_impossible_size_is_asked_of_an_allocator_that_does_not_look(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[int] = []

    class Slab:
        def fill_(self, _value: int) -> None:
            pass

        def numel(self) -> int:
            return 64 * MIB

        def is_pinned(self) -> bool:
            return True

    def empty(size: int, **_options: Any) -> None:
        asked.append(size)
        raise RuntimeError("CUDA error: invalid argument")

    plain = SimpleNamespace(is_pinned=lambda: False)
    torch = SimpleNamespace(empty=empty, zeros=lambda *_, **__: plain, uint8=None)
    ctx = SimpleNamespace(torch=torch, spec={}, pinned_slab=Slab, slab_bytes=64 * MIB)
    (item,) = c09_pinned.run(ctx)
    assert ([control["held"] for control in item["controls"]], len(asked)) == ([True, True], 1)
    monkeypatch.setenv(name, "expandable_segments:True, pinned_use_cuda_host_register:True")
    (item,) = c09_pinned.run(ctx)
    assert ([control["name"] for control in item["controls"]], len(asked)) == (["pageable_is_not_pinned"], 1)
    assert item["observed"]["cap_bytes"] == 64 * MIB
