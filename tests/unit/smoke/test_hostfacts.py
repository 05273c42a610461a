from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

hostfacts: Any = import_module("envkit.smoke.hostfacts")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000", 0.5), ("400000 200000", 2.0), ("", None), ("x", None)],
)
def test_quota_of_cgroup_v2(text: str, cpus: float | None) -> None:
    assert hostfacts.quota_v2(text) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [("-1\n", "100000\n", None), ("150000\n", "100000\n", 1.5), ("", "", None), ("100000", "0", None)],
)
def test_quota_of_cgroup_v1(quota: str, period: str, cpus: float | None) -> None:
    assert hostfacts.quota_v1(quota, period) == cpus


@pytest.mark.parametrize(
    ("text", "count"), [("0-3\n", 4), ("0,2-3", 3), ("7", 1), ("", None), ("0-1,8-9,32", 5), ("\n", None)]
)
def test_kernel_lists(text: str, count: int | None) -> None:
    assert hostfacts.count_list(text) == count


@pytest.mark.parametrize(
    ("text", "size"), [("max\n", None), ("9223372036854771712\n", None), ("2147483648\n", 2147483648), ("", None)]
)
def test_memory_limits(text: str, size: int | None) -> None:
    assert hostfacts.memory_limit(text) == size


@pytest.mark.parametrize(
    ("affinity", "quota", "cpuset", "cpus"),
    [(8, None, None, 8.0), (8, 1.5, None, 1.5), (2, 4.0, 16, 2.0), (8, None, 3, 3.0)],
)
def test_the_smallest_limit_counts(affinity: int, quota: float | None, cpuset: int | None, cpus: float) -> None:
    assert hostfacts.effective_cpus(affinity, quota, cpuset) == cpus


@pytest.mark.parametrize(("cpus", "whole"), [(0.5, 1), (1.0, 1), (1.99, 1), (2.0, 2), (7.5, 7)])
def test_threads_that_fit_are_rounded_down(cpus: float, whole: int) -> None:
    assert hostfacts.whole_cpus(cpus) == whole


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc": "0::/pod/box\n",
            "fs/cgroup.controllers": "cpu memory",
            "fs/cpuset.cpus.effective": "0-7\n",
            "fs/pod/cpu.max": "150000 100000\n",
            "fs/pod/box/cpu.max": "max 100000\n",
            "fs/pod/box/memory.max": "1073741824\n",
            "fs/pod/memory.max": "4294967296\n",
        },
    )
    found = hostfacts.read_cgroup(tmp_path / "fs", tmp_path / "proc")
    assert found == {"version": 2, "quota_cpus": 1.5, "cpuset_cpus": 8, "memory_bytes": 1073741824}


def test_cgroup_v1_inside_a_container_reads_the_mounts_root(tmp_path: Path) -> None:
    # The path is the host's; inside, the container's own group is mounted as the root.
    write(
        tmp_path,
        {
            "proc": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "fs/cpu/cpu.cfs_quota_us": "50000\n",
            "fs/cpu/cpu.cfs_period_us": "100000\n",
            "fs/memory/memory.limit_in_bytes": "536870912\n",
            "fs/cpuset/cpuset.cpus": "0-1\n",
        },
    )
    found = hostfacts.read_cgroup(tmp_path / "fs", tmp_path / "proc")
    assert found == {"version": 1, "quota_cpus": 0.5, "cpuset_cpus": 2, "memory_bytes": 536870912}


def test_a_machine_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    found = hostfacts.read_cgroup(tmp_path / "none", tmp_path / "none")
    assert found == {"version": None, "quota_cpus": None, "cpuset_cpus": None, "memory_bytes": None}


def test_processor_and_memory_are_read_from_procs_text() -> None:
    assert hostfacts.processor_name("processor : 0\nmodel name\t: AMD EPYC 9654\n") == "AMD EPYC 9654"
    assert hostfacts.processor_name("Model\t\t: Raspberry Pi 5\n") == "Raspberry Pi 5"
    assert hostfacts.memory_total("MemTotal:       1024 kB\nMemFree: 1 kB\n") == 1048576
    assert hostfacts.memory_total("") is None


def test_only_device_nodes_of_gpus_count() -> None:
    names = ["null", "nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia-modeset", "shm"]
    assert hostfacts.device_nodes(names) == ["nvidia0", "nvidia1"]
    assert hostfacts.device_nodes(["dxg"]) == ["dxg"]


def test_only_variables_of_cuda_and_torch_leave_the_container_and_no_secret() -> None:
    environment = {
        "HOME": "/home/user",
        "AWS_SECRET_ACCESS_KEY": "x",
        "TORCH_HUB_TOKEN": "x",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "TORCH_LOGS": "",
        "OMP_NUM_THREADS": "4",
    }
    found = hostfacts.relevant(environment)
    assert found == {"NVIDIA_VISIBLE_DEVICES": "all", "OMP_NUM_THREADS": "4", "TORCH_LOGS": ""}


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_DEVICE_ORDER",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_CACHE_PATH",
        "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY",
        "CUBLASLT_WORKSPACE_SIZE",
        "CUDNN_LOGLEVEL_DBG",
        "TRITON_F32_DEFAULT",
    ],
)
def test_what_changes_arithmetic_or_speed_is_recorded(name: str) -> None:
    assert hostfacts.relevant({name: "1"}) == {name: "1"}


def test_the_memory_that_is_left_is_the_tightest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostfacts, "read_text", lambda _path: "MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    for limit, room in ((None, 500 * 1024), (1 << 30, 500 * 1024), (1000, 1000)):
        monkeypatch.setattr(hostfacts, "read_cgroup", lambda limit=limit: {"memory_bytes": limit})
        assert hostfacts.memory_room() == room
    monkeypatch.setattr(hostfacts, "read_text", lambda _path: "")
    monkeypatch.setattr(hostfacts, "read_cgroup", lambda: {"memory_bytes": None})
    assert hostfacts.memory_room() is None


ROUTES = "Iface\tDestination\tGateway\neth0\t00000000\t010011AC\neth0\t000011AC\t00000000\n"
ROUTES_6 = "00000000000000000000000000000001 80 00000000 lo\nfe800000 40 0000 eth1\n"


def test_a_container_without_network_has_no_way_out() -> None:
    assert hostfacts.routed_interfaces("Iface\tDestination\n", ROUTES_6.splitlines()[0]) == []
    assert hostfacts.routed_interfaces(ROUTES, ROUTES_6) == ["eth0", "eth1"]
    assert hostfacts.routed_interfaces("", "") == []
