from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

mini_train: Any = import_module("envkit.smoke.mini_train")


@pytest.mark.parametrize(("full", "without", "share"), [(10, 10, 0), (10, 5, 0.5), (5, 10, 0), (0, 1, 0), (10, 0, 1)])
def test_the_starved_share_is_what_the_loader_costs(full: float, without: float, share: float) -> None:
    assert mini_train.starved_share(full, without) == share


def test_a_starving_loader_waits_and_an_absent_one_does_not() -> None:
    begin = mini_train.time.perf_counter()
    source = mini_train.same("batch", 0.01)
    assert [next(source), next(source)] == ["batch", "batch"]
    assert mini_train.time.perf_counter() - begin >= 0.02
