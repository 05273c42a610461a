from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

gpus: Any = import_module("envkit.smoke.gpus")
nvml: Any = import_module("envkit.smoke.nvml")


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


class Device:
    """Copies one after another and readings of a link that wakes up after 0.1 s, on a clock of its own."""

    def __init__(self, copy_s: float, reading_s: float) -> None:
        self.copy_s, self.reading_s = copy_s, reading_s
        self.at = self.done = 0.0
        self.cuda = SimpleNamespace(Event=lambda: Recorded(self), synchronize=lambda: None)

    def copy(self) -> None:
        self.done = max(self.done, self.at) + self.copy_s

    def read(self) -> dict[str, Any]:
        return {"gen": 1, "width": 16, "gen_max": 4, "width_max": 16, "c2c": False}

    def now(self) -> dict[str, Any]:
        self.at += self.reading_s
        return {"gen": 5 if self.at > 0.1 and self.at < self.done else 1, "width": 16}


class Recorded:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self.device.done

    def query(self) -> bool:
        return self.device.at >= self.at


def under_load(device: Device, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(gpus, "HostLink", lambda _torch: device)
    monkeypatch.setattr(c10_transfer, "time", SimpleNamespace(perf_counter=lambda: device.at))
    copies = [(name, device.copy) for name in ("h2d_pinned", "d2h_pinned")]
    ends = SimpleNamespace(copies=lambda _size: copies, deciding_mib=256)
    found: dict[str, Any] = c10_transfer._link_under_load(device, ends)
    return found


@pytest.mark.parametrize("reading_s", [0.0001, 0.004, 0.05, 0.15])
def test_the_link_is_read_three_times_under_load_however_slow_readings_are(
    reading_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixed queue of 24 copies lasted 117 ms on PCIe 5.0, less than a reading on some drivers."""
    found = under_load(Device(0.0048, reading_s), monkeypatch)
    assert (found["gen"], found["busy"], found["idle_gen"], found["gen_max"]) == (5, True, 1, 4)


def test_a_link_that_no_queue_covers_was_not_seen_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    found = under_load(Device(0.001, 0.9), monkeypatch)
    assert (found["gen"], found["busy"]) == (1, False)


def test_what_a_gpu_tells_of_its_memory_and_bus_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """GB10: NVML answers with a link of Gen1 x1 and has no memory of its own to tell of."""
    session = nvml.Nvml(GB10())
    monkeypatch.setattr(nvml, "open_session", lambda: session)
    properties = SimpleNamespace(is_integrated=1, uuid=None)
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _index: properties))
    link = gpus.HostLink(torch)
    read = link.read()
    assert (read["gen"], read["width"], read["source"]) == (1, 1, "nvml")
    assert (read["integrated"], read["own_memory"], read["bus"], read["c2c"]) == (True, False, None, None)
    assert link.now() == {"gen": 1, "width": 1}


class GB10:
    """The functions of NVML on a GPU without memory of its own. Each fills in the number that its last argument is."""

    def __getattr__(self, name: str) -> Any:
        if name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetBusType"):
            return lambda *_: nvml.NOT_SUPPORTED
        if "Pcie" in name or name in ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"):
            return self._one
        raise AttributeError(name)

    @staticmethod
    def _one(*arguments: Any) -> int:
        arguments[-1]._obj.value = 1
        return 0
