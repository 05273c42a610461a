from __future__ import annotations

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

c20: Any = import_module("envkit.checks.c20_collectives.observe")


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_of_an_all_reduce(ranks: int, factor: float) -> None:
    assert c20.bus_bandwidth(100.0, ranks) == pytest.approx(100 * factor)


def test_the_process_that_failed_explains_the_group_and_not_those_that_waited_for_it() -> None:
    good, late, failed = {"outcome": "answered"}, {"outcome": "timeout"}, {"outcome": "failed"}
    assert (c20.worst([good, good]), c20.broken_rank([good, good])) == ("answered", None)
    assert (c20.worst([late, late, late, failed]), c20.broken_rank([late, late, late, failed])) == ("failed", 3)
    assert (c20.worst([good, late]), c20.broken_rank([good, late])) == ("timeout", 1)


@pytest.mark.parametrize(
    ("ranks", "cpus", "seconds"), [(2, 2.0, 40.0), (8, 16.0, 70.0), (8, 2.0, 190.0), (1, 0.5, 40.0)]
)
def test_a_group_has_more_time_where_its_processes_share_cpus(ranks: int, cpus: float, seconds: float) -> None:
    assert c20.group_limit_s(ranks, cpus) == seconds


@pytest.fixture
def image_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("NCCL_NET", "IB")


@pytest.mark.usefixtures("image_of_a_cluster")
def test_processes_meet_on_loopback_unless_the_image_says_otherwise() -> None:
    given, replaced = c20.environment(["eth7"])
    assert {**os.environ, **given}["NCCL_SOCKET_IFNAME"] == "eth7"
    assert {**os.environ, **given}["NCCL_NET"] == "IB"
    assert (given["GLOO_SOCKET_IFNAME"], replaced) == ("lo", {})


@pytest.mark.usefixtures("image_of_a_cluster")
def test_an_interface_that_a_run_without_network_takes_away_is_replaced_and_noted() -> None:
    given, replaced = c20.environment([])
    assert {**os.environ, **given}["NCCL_SOCKET_IFNAME"] == "lo"
    assert {**os.environ, **given}["NCCL_NET"] == "Socket"
    assert replaced == {"NCCL_SOCKET_IFNAME": "eth7", "NCCL_NET": "IB"}


def test_pairs_of_gpus_that_cannot_reach_each_other_are_named() -> None:
    reaches = {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2)}
    cuda = SimpleNamespace(can_device_access_peer=lambda one, other: (one, other) in reaches)
    assert c20.without_peer_access(SimpleNamespace(cuda=cuda), 3) == ["1-2"]
    assert c20.without_peer_access(SimpleNamespace(cuda=cuda), 2) == []
