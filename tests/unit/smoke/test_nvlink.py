"""NVLinks read from a library that answers as NVML does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

nvlink: Any = import_module("envkit.smoke.nvlink")
nvml: Any = import_module("envkit.smoke.nvml")
NOT_SUPPORTED = 3


class Card:
    """NVML of one GPU: `up` says for each of its links whether it is active."""

    def __init__(self, up: list[int], *, far: str = "switch", speed: int = 26562, count: int | None = None) -> None:
        self.up, self.far, self.speed = up, far, speed
        self.count = len(up) if count is None else count

    def nvmlDeviceGetFieldValues(self, _handle: Any, _count: Any, item: Any) -> int:  # noqa: N802 - NVML's name
        found = {nvlink.SPEED_MBPS: self.speed, nvlink.LINK_COUNT: self.count}.get(item._obj.field)
        item._obj.result = NOT_SUPPORTED if found is None or not self.up else 0
        item._obj.value.uint = found or 0
        return 0

    def nvmlDeviceGetNvLinkState(self, _handle: Any, link: Any, value: Any) -> int:  # noqa: N802 - NVML's name
        if link.value >= len(self.up):
            return NOT_SUPPORTED
        value._obj.value = self.up[link.value]
        return 0

    def nvmlDeviceGetNvLinkErrorCounter(self, _handle: Any, _link: Any, kind: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = {1: 2}.get(kind.value, 0)
        return 0

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, _handle: Any, _link: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 2 if self.far == "switch" else 0
        return 0

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, _handle: Any, _link: Any, value: Any) -> int:  # noqa: N802
        value._obj.bus_id = self.far.encode()
        return 0

    def nvmlDeviceGetPciInfo_v3(self, _handle: Any, value: Any) -> int:  # noqa: N802 - NVML's name
        value._obj.bus_id = b"00000000:3B:00.0"
        return 0


def state(*arguments: Any, **changed: Any) -> Any:
    return nvlink.state(nvml.Nvml(Card(*arguments, **changed)), 1)


def test_links_are_counted_with_their_speed_their_errors_and_their_far_end() -> None:
    assert state([1, 1, 0, 1]) == {
        "bus": "00000000:3b:00.0",
        "links": 4,
        "active": 3,
        "gb_per_s": 26.562,
        "to": ["switch"],
        "errors": {"replay": 0, "recovery": 8, "crc_flit": 0, "crc_data": 0},
    }
    assert state([1, 1], far="00000000:5E:00.0")["to"] == ["00000000:5e:00.0"]
    assert state([0, 0])["gb_per_s"] is None


def test_a_gpu_without_nvlink_has_no_state() -> None:
    assert state([]) is None


def card(bus: str, *to: str, active: int = 12, rate: float | None = 25.8) -> dict[str, Any]:
    return {"bus": bus, "links": 12, "active": active, "gb_per_s": rate, "to": list(to) or None, "errors": {}}


@pytest.mark.parametrize(
    ("states", "rate"),
    [
        ([card("a", "switch"), card("b", "switch")], 309.6),
        ([card("a", "switch"), card("b", "switch", active=6)], 154.8),
        ([card("a", "b", "c"), card("b", "a", "c"), card("c", "a", "b")], 309.6),
        ([card("a", "b"), card("b", "a"), card("c", "d"), card("d", "c")], None),  # bridged in pairs
        ([card("a", "switch"), card("b", "switch", active=0)], None),
        ([card("a", "switch"), card("b")], None),
        ([card("a", "switch"), None], None),
        ([card("a", "switch"), card("b", "switch", rate=None)], None),
        ([card("a", "switch")], None),
    ],
)
def test_a_group_owes_a_rate_only_where_links_join_all_of_it(states: list[Any], rate: float | None) -> None:
    assert nvlink.group_rate(states) == (None if rate is None else pytest.approx(rate))
