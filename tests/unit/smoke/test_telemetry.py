"""Reading a GPU's own counters, with a library that answers as NVML does: by filling in what it is pointed at."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import pytest

nvml: Any = import_module("envkit.smoke.nvml")
telemetry: Any = import_module("envkit.smoke.telemetry")

NOT_SUPPORTED, TIMEOUT = 3, 10


class Library:
    """NVML with the readings it was given; a name that is absent is a function this driver lacks."""

    def __init__(self, **readings: Any) -> None:
        self.readings = readings
        self.xids = list(readings.pop("xids", []))

    def __getattr__(self, name: str) -> Any:
        if name in ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetFree"):
            return lambda *_: 0 if self.readings.get("events", True) else NOT_SUPPORTED
        if name == "nvmlEventSetWait_v2":
            return self._event
        if name == "nvmlDeviceGetHandleByIndex_v2":
            return lambda *_: 0
        if name not in self.readings:
            raise AttributeError(name)
        return lambda *arguments: self._fill(name, arguments)

    def _fill(self, name: str, arguments: tuple[Any, ...]) -> int:
        value = self.readings[name]
        if isinstance(value, list):
            value = value.pop(0) if len(value) > 1 else value[0]
        if value is None:
            return NOT_SUPPORTED
        arguments[-1]._obj.value = value
        return 0

    def _event(self, _events: Any, data: Any, _wait: Any) -> int:
        if not self.xids:
            return TIMEOUT
        data._obj.data = self.xids.pop(0)
        return 0


FULL: dict[str, Any] = {
    "nvmlDeviceGetClockInfo": 1755,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetPowerUsage": 512345,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40,
    "nvmlDeviceGetTotalEccErrors": [0, 2],
    "nvmlDeviceGetPcieReplayCounter": [5, 9],
}


def watched(**readings: Any) -> dict[str, Any]:
    watch = telemetry.Watch(nvml.Nvml(Library(**readings)), 0)
    watch.start()
    time.sleep(0.05)
    found: dict[str, Any] = watch.stop()
    return found


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.005)


def test_readings_have_their_units_and_names() -> None:
    session = nvml.Nvml(Library(**FULL))
    assert telemetry.reading(session, session.handle(0)) == {
        "sm_mhz": 1755,
        "celsius": 61,
        "watts": 512.345,
        "events": ["sw_power_cap", "hw_thermal_slowdown"],
    }


def test_counters_are_told_by_how_much_they_grew() -> None:
    found = watched(**{name: list(value) if isinstance(value, list) else value for name, value in FULL.items()})
    assert (found["uncorrected_ecc"], found["pcie_replays"], found["max_sm_mhz"]) == (2, 4, 1980)
    assert found["rows"]
    assert found["xids"] == []


def test_messages_of_the_driver_are_heard() -> None:
    assert watched(**FULL, xids=[79, 48])["xids"] == [79, 48]


def test_the_first_reading_and_the_last_message_do_not_wait_for_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "PERIOD_S", 60.0)
    found = watched(**FULL, xids=[79])
    assert [row["sm_mhz"] for row in found["rows"]] == [1755]
    assert found["xids"] == [79]


def test_a_device_that_tells_nothing_tells_nothing() -> None:
    found = watched(events=False)
    assert (found["uncorrected_ecc"], found["pcie_replays"], found["max_sm_mhz"], found["xids"]) == (None,) * 4
    assert all(row["sm_mhz"] is row["watts"] is row["events"] is None for row in found["rows"])


def test_long_runs_are_thinned_and_keep_both_ends_apart() -> None:
    rows = [{"at_s": number} for number in range(1000)]
    kept = telemetry.thinned(rows)
    assert len(kept) == telemetry.MAX_ROWS
    assert (kept[0]["at_s"], kept[-1]["at_s"]) == (0, 995)
    assert telemetry.thinned(rows[:7]) == rows[:7]
