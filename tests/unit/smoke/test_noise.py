from __future__ import annotations

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.nvml import UUID, session

noise: Any = import_module("envkit.smoke.noise")
observation: Any = import_module("envkit.smoke.observation")

V2_STAT = "usage_usec 93\nuser_usec 40\nsystem_usec 53\nnr_periods 69\nnr_throttled 17\nthrottled_usec 812\n"
V1_STAT = "nr_periods 69\nnr_throttled 17\nthrottled_time 812000\n"


def snapshot(**changed: Any) -> dict[str, Any]:
    base = {"time": 0.0, "waited_s": 0.0, "throttling": {"nr_periods": 0, "nr_throttled": 0}, "gpu": None}
    return {**base, "own_gpu_processes": 1, **changed}


def gpu(pstate: str = "P0", events: tuple[str, ...] = (), pids: Any = (11,), **others: Any) -> dict[str, Any]:
    told = {"pstate": pstate, "clock_events": list(events), "pids": None if pids is None else list(pids)}
    return {**told, "busy": None, "foreign_bytes": None, **others}


@pytest.mark.parametrize("text", [V1_STAT, V2_STAT])
def test_cpu_stat_of_both_cgroup_versions(text: str) -> None:
    assert noise.parse_cpu_stat(text) == {"nr_periods": 69, "nr_throttled": 17}


def test_cpu_stat_of_a_root_cgroup_counts_nothing() -> None:
    assert noise.parse_cpu_stat("usage_usec 93\n") is None


def test_cpu_stat_of_cgroup_v2_lies_below_the_own_path_first() -> None:
    paths = noise.cpu_stat_paths("0::/user.slice/job\n", "/cg")
    assert paths[0] == "/cg/user.slice/job/cpu.stat"
    assert "/cg/cpu.stat" in paths


def test_cpu_stat_of_cgroup_v1_lies_below_the_controller() -> None:
    paths = noise.cpu_stat_paths("4:memory:/job\n2:cpu,cpuacct:/docker/abc\n", "/cg")
    assert paths[:2] == ["/cg/cpu,cpuacct/docker/abc/cpu.stat", "/cg/cpu,cpuacct/cpu.stat"]
    assert not any("memory" in path for path in paths)


def test_gpu_state_names_the_events_that_cost_clock() -> None:
    state = noise.parse_gpu_state("P2, 0x00000000000000E8\n")
    assert state["pstate"] == "P2"
    assert state["clock_events"] == ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"]


def test_a_power_cap_is_no_slowdown() -> None:
    assert noise.parse_gpu_state("P0, 0x0000000000000004\n")["clock_events"] == []


def test_gpu_state_of_no_answer() -> None:
    assert noise.parse_gpu_state("") is None
    assert noise.parse_gpu_state("[N/A], [N/A]\n") == {"pstate": None, "clock_events": []}


def test_quiet_is_clean() -> None:
    found = noise.gate(snapshot(), snapshot(time=2.0, waited_s=0.1, gpu=gpu()))
    assert found["gate"] == "clean"
    assert found["psi_cpu_some"] == pytest.approx(0.05)


def test_sources_that_do_not_exist_spoil_nothing() -> None:
    nothing = {"waited_s": None, "throttling": None}
    found = noise.gate(snapshot(**nothing), snapshot(time=1.0, **nothing))
    assert found["gate"] == "clean"
    assert found["psi_cpu_some"] is None


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"waited_s": 0.3}, "CPU pressure 0.30 above 0.10"),
        ({"throttling": {"nr_periods": 9, "nr_throttled": 3}}, "CPU quota throttled 3 periods"),
        ({"gpu": gpu(events=("hw_power_brake",))}, "GPU clock events: hw_power_brake"),
        ({"gpu": gpu(pids=(11, 12))}, "1 other compute processes on the GPU"),
        ({"gpu": gpu(busy=6)}, "GPU used by others: 6 % of the time"),
        ({"gpu": gpu(foreign_bytes=3 << 30)}, "GPU used by others: 3.0 GiB"),
        ({"gpu": gpu(pstate="P8")}, "GPU in P8 right after the work"),
    ],
)
def test_each_disturbance_is_named(after: dict[str, Any], reason: str) -> None:
    assert noise.gate(snapshot(), snapshot(time=1.0, **after))["gate"] == reason


def test_an_idle_gpu_before_the_work_is_fine() -> None:
    found = noise.gate(snapshot(gpu=gpu("P8")), snapshot(time=1.0, gpu=gpu("P0")))
    assert (found["gate"], found["pstate"]) == ("clean", ["P8", "P0"])


def test_a_container_that_shows_no_process_ids_is_no_disturbance() -> None:
    found = noise.gate(snapshot(), snapshot(time=1.0, gpu=gpu(pids=None)))
    assert (found["gate"], found["other_gpu_procs"]) == ("clean", None)


# The GPU, read through NVML.


class Cuda(SimpleNamespace):
    """As much of torch.cuda as the gate asks."""

    def __init__(self, reserved: int = 0, initialized: bool = True) -> None:
        properties = SimpleNamespace(uuid=UUID.replace("GPU-", ""))
        super().__init__(
            get_device_properties=lambda _index: properties,
            is_available=lambda: True,
            is_initialized=lambda: initialized,
            memory_reserved=lambda _index: reserved,
            synchronize=lambda: None,
        )


def torch(**options: Any) -> SimpleNamespace:
    return SimpleNamespace(cuda=Cuda(**options))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "IDLE_STEP_S", 0)
    monkeypatch.setattr(noise, "_before_context", {})
    monkeypatch.setattr(noise, "_nvidia_smi", {"usable": True})


def read(monkeypatch: pytest.MonkeyPatch, idle: bool = True, torch: Any = None, **answers: Any) -> dict[str, Any]:
    told = session(nvmlDeviceGetPerformanceState=(0,), **answers)
    monkeypatch.setattr(noise.nvml, "open_session", lambda: told)
    found: dict[str, Any] = noise.gpu_state(torch or SimpleNamespace(cuda=Cuda()), idle)
    return found


def told(state: dict[str, Any]) -> Any:
    return noise.gate(snapshot(gpu=state), snapshot(time=1.0, gpu=gpu()))["gate"]


def test_with_nvml_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    state = read(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=(0x4 | 0x40,), processes=[(7, 1 << 20)])
    assert (state["pstate"], state["clock_events"], state["pids"]) == ("P0", ["hw_thermal_slowdown"], [7])


def test_a_neighbor_that_computes_is_seen_where_no_process_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    state = read(monkeypatch, nvmlDeviceGetUtilizationRates=({"gpu": 40},), processes=[])
    assert told(state) == "GPU used by others: 40 % of the time"


def test_the_load_of_this_process_fades_before_others_are_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    fading = [({"gpu": percent},) for percent in (98, 98, 60, 3, 0, 0)]
    assert told(read(monkeypatch, nvmlDeviceGetUtilizationRates=fading)) == "clean"


def test_only_an_idle_process_reads_who_else_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = ({"gpu": 98},)
    assert read(monkeypatch, idle=False, nvmlDeviceGetUtilizationRates=busy)["busy"] is None
    assert read(monkeypatch)["busy"] is None  # a device that does not tell, as a MIG slice


@pytest.mark.parametrize(
    ("used_gib", "reserved_gib", "expected"),
    [(3, 1, "clean"), (20, 18, "clean"), (20, 2, "GPU used by others: 16.0 GiB")],
)
def test_memory_above_torchs_pool_and_a_context_is_other_peoples(
    monkeypatch: pytest.MonkeyPatch, used_gib: int, reserved_gib: int, expected: str
) -> None:
    memory = ({"total": 80 << 30, "used": used_gib << 30},)
    state = read(monkeypatch, torch=torch(reserved=reserved_gib << 30), nvmlDeviceGetMemoryInfo_v2=memory)
    assert told(state) == expected


def test_what_was_held_before_our_context_is_other_peoples(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ({"total": 80 << 30, "used": 3 << 29},)
    monkeypatch.setattr(noise.nvml, "open_session", lambda: session(nvmlDeviceGetMemoryInfo_v2=memory))
    noise.note_idle_memory()
    assert told(noise.gpu_state(torch())) == "GPU used by others: 1.5 GiB"


def test_our_own_process_is_counted_exactly_where_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ({"total": 80 << 30, "used": 10 << 30},)
    own = [(os.getpid(), 10 << 30)]
    assert read(monkeypatch, nvmlDeviceGetMemoryInfo_v2=memory, processes=own)["foreign_bytes"] == 0


def test_the_server_of_mps_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [(2**22 + 1, 1 << 20), (os.getpid(), 1 << 20)]
    state = read(monkeypatch, processes=running, nvmlSystemGetProcessName="/usr/bin/nvidia-cuda-mps-server")
    assert state["pids"] == [os.getpid()]


def test_what_the_gpu_times_does_not_wait_for_a_busy_processor() -> None:
    busy = noise.gate(snapshot(), snapshot(time=1.0, waited_s=0.3, gpu=gpu()))
    assert (busy["gate"], busy["gpu_gate"]) == ("CPU pressure 0.30 above 0.10", "clean")
    for clock, expected in (("cuda_event", "clean"), ("perf_counter+sync", busy["gate"])):
        item = observation.ran("C10.x", "gpu:0", {}, samples={"clock": clock}, noise=busy)
        assert item["noise"]["gate"] == expected
    throttled = noise.gate(snapshot(), snapshot(time=1.0, gpu=gpu(events=("hw_power_brake",))))
    assert observation.ran("C10.x", "gpu:0", {}, samples={"clock": "cuda_event"}, noise=throttled)["noise"] == throttled
