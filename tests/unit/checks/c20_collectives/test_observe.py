from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

c20: Any = import_module("envkit.checks.c20_collectives.observe")


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_of_an_all_reduce(ranks: int, factor: float) -> None:
    assert c20.bus_bandwidth(100.0, ranks) == pytest.approx(100 * factor)


def test_one_broken_process_breaks_the_group() -> None:
    good = {"outcome": "answered"}
    assert c20.worst([good, good]) == "answered"
    assert c20.worst([good, {"outcome": "timeout"}, {"outcome": "failed"}]) == "timeout"


def test_processes_are_told_to_meet_on_loopback_unless_the_image_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    found = c20.environment()
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("lo", "eth7")
