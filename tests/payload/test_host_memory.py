"""Host memory by the limit of the container, and copies measured again on the CPUs near the GPU."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.payloads import module, observer

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")

context, hostfacts = module("context"), module("hostfacts")
check = observer("c10_transfer")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("room_mib", "slab_mib"), [(None, 256), (65536, 256), (4096, 256), (4095, 64), (1024, 64), (512, 64)]
)
def test_the_page_locked_buffer_follows_the_memory(
    monkeypatch: pytest.MonkeyPatch, room_mib: int | None, slab_mib: int
) -> None:
    room = None if room_mib is None else room_mib * MIB
    monkeypatch.setattr(hostfacts, "memory_room", lambda: room)
    assert context.Ctx({}).slab_bytes == slab_mib * MIB


def test_the_largest_copy_that_fits_decides() -> None:
    for slab_mib, sizes in ((64, [1, 16, 64]), (256, [1, 16, 64, 256])):
        slab = torch.zeros(slab_mib * MIB, dtype=torch.uint8)
        ends = check.Ends(SimpleNamespace(torch=OnCpu(), pinned_slab=lambda slab=slab: slab))
        assert (ends.sizes_mib, ends.deciding_mib) == (sizes, slab_mib)


class OnCpu:
    """torch whose CUDA device is the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: int, dtype: Any, device: str | None = None) -> Any:
        del device
        return torch.zeros(*size, dtype=dtype)

    def empty(self, *size: int, dtype: Any, pin_memory: bool) -> Any:
        del pin_memory
        return torch.empty(*size, dtype=dtype)


@pytest.mark.parametrize("size", [1, 250, 251, 252, 1000, 4097])
def test_the_pattern_is_written_in_place_and_whole(size: int) -> None:
    buffer = torch.zeros(size, dtype=torch.uint8)
    context.fill_pattern(torch, buffer)
    assert buffer.tolist() == [index % 251 for index in range(size)]


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """A machine with two sockets, whose GPU is near the first CPU that this process may use; the CPUs it moved to."""
    allowed = os.sched_getaffinity(0)
    near = min(allowed)
    place = {"node": 1, "cpus": str(near)}
    plain = hostfacts.read_text
    monkeypatch.setattr(module("gpus"), "placement", lambda _address: place)
    monkeypatch.setattr(module("gpus"), "bus_address", lambda _torch: "0000:3b:00.0")
    monkeypatch.setattr(hostfacts, "read_text", lambda path: "0-1" if "node/online" in str(path) else plain(path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed | {near + 1})
    return {near}


def test_a_process_that_may_move_near_the_gpu_is_told_where(two_nodes: set[int]) -> None:
    place, near = check._placement(torch)
    assert near == two_nodes
    assert (place["nodes"], place["node"], place["local_allowed"]) == (2, 1, 1)


@pytest.mark.usefixtures("two_nodes")
def test_on_one_socket_nothing_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostfacts, "read_text", lambda _path: "0")
    assert check._placement(torch)[1] is None


def test_the_copy_near_the_gpu_runs_there_with_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before, plain = os.sched_getaffinity(0), os.sched_setaffinity
    moved: list[set[int]] = []

    def move(pid: int, cpus: set[int]) -> None:
        moved.append(set(cpus))
        plain(pid, cpus)

    monkeypatch.setattr(os, "sched_setaffinity", move)
    monkeypatch.setattr(module("timing"), "event_clock", lambda _torch: module("timing").wall_clock())
    ends = SimpleNamespace(deciding_mib=1, device=torch.zeros(MIB, dtype=torch.uint8))
    found = check._on_cpus(OnCpu(), ends, {min(before)})
    assert set(found) == {"h2d_pinned", "d2h_pinned"}
    assert min(found.values()) > 0
    assert moved == [{min(before)}, before]
    assert os.sched_getaffinity(0) == before


def test_a_container_that_forbids_moving_keeps_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    before, calls = os.sched_getaffinity(0), []

    def forbidden(_pid: int, cpus: set[int]) -> None:
        calls.append(cpus)
        if cpus != before:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    assert check._on_cpus(OnCpu(), SimpleNamespace(deciding_mib=1, device=None), {99}) == {}
    assert calls == [{99}, before]
