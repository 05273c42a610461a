from typing import Any

import pytest

from envkit.checks.catalog import machine_codes
from tests.support.verdicts import CLEAN, FAIL, INCONCLUSIVE, PASS, WARN, found, said

COMMON = {"backend": "nccl", "ranks": 4, "outcome": "answered", "error": None}
SUMS = {**COMMON, "wrong": {"4": 0, "65536": 0, "1048576": 0, "16777216": 0}}
DDP = {**COMMON, "difference": 2.3e-16}
BANDWIDTH = {
    "ranks": 4,
    "bytes": 512 << 20,
    "algbw_gb_per_s": 150.0,
    "busbw_gb_per_s": 225.0,
    "peer_access": True,
}


def test_exact_collectives_pass_and_gate() -> None:
    finding = found("C20.allreduce.nccl", SUMS)
    assert (finding.verdict, finding.rule["gates"]) == (PASS, True)
    assert finding.message == "nccl: all-reduces of 4 sizes over 4 processes are exact"
    assert said("C20.ddp.nccl", DDP) == (PASS, None)


@pytest.mark.parametrize(
    ("part", "observed", "code"),
    [
        ("allreduce", {**SUMS, "wrong": {"4": 0, "65536": 2}}, "COLLECTIVE_WRONG"),
        ("allreduce", {**SUMS, "wrong": {}}, "COLLECTIVE_WRONG"),
        ("ddp", {**DDP, "difference": 1e-9}, "DDP_GRADIENT_WRONG"),
        ("allreduce", {**SUMS, "outcome": "timeout", "error": "no answer in 60 s"}, "COLLECTIVE_HANGS"),
        (
            "ddp",
            {**DDP, "outcome": "failed", "error": "x\nError while creating shared memory segment"},
            "SHM_TOO_SMALL",
        ),
        ("ddp", {**DDP, "outcome": "failed", "error": "Unable to find address for: nosuch0"}, "SOCKET_INTERFACE"),
        ("ddp", {**DDP, "outcome": "failed", "error": "libnccl.so.2: cannot open shared object"}, "NCCL_NOT_LOADED"),
        ("ddp", {**DDP, "outcome": "failed", "error": "CUDA out of memory. Tried to allocate"}, "GPU_OUT_OF_MEMORY"),
        ("ddp", {**DDP, "outcome": "failed", "error": "device(s) is/are busy or unavailable"}, "GPU_EXCLUSIVE"),
        ("ddp", {**DDP, "outcome": "failed", "error": ""}, "COLLECTIVE_FAILED"),
    ],
)
def test_each_fault_fails_and_gates(part: str, observed: dict[str, Any], code: str) -> None:
    finding = found(f"C20.{part}.nccl", observed)
    assert (finding.verdict, finding.reason_code) == (FAIL, code)
    assert finding.rule["gates"] is True


def test_a_slow_machine_is_no_fault_of_gloo() -> None:
    changed = {"backend": "gloo", "outcome": "timeout", "error": "no answer in 60 s"}
    assert said("C20.ddp.gloo", {**DDP, **changed}) == (INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")


def test_bandwidth_informs_and_a_detour_is_named() -> None:
    finding = found("C20.bandwidth.nccl", BANDWIDTH, noise=CLEAN)
    assert (finding.verdict, finding.rule["gates"]) == (PASS, False)
    assert finding.message == "all-reduce of 512 MiB over 4 GPUs: 225.0 GB/s bus bandwidth"
    assert said("C20.bandwidth.nccl", {**BANDWIDTH, "peer_access": False}, noise=CLEAN) == (WARN, "NO_PEER_ACCESS")


LATE = {**SUMS, "outcome": "timeout", "error": "no answer in 45 s", "limit_s": 70.0, "limit_wanted_s": 70.0}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"begun": 4}, (FAIL, "COLLECTIVE_HANGS")),
        ({"begun": 1}, (FAIL, "COLLECTIVE_HANGS")),
        ({"begun": 0}, (INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")),
        ({"begun": 4, "limit_s": 20.0}, (INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")),
    ],
)
def test_a_group_hangs_only_where_it_had_begun_and_had_its_time(changed: dict[str, Any], expected: Any) -> None:
    assert said("C20.allreduce.nccl", {**LATE, **changed}) == expected


def test_the_rank_that_failed_is_quoted() -> None:
    observed = {
        **SUMS,
        "outcome": "failed",
        "rank": 3,
        "error": "Traceback\ntorch.OutOfMemoryError: CUDA out of memory.",
    }
    finding = found("C20.allreduce.nccl", observed)
    assert finding.reason_code == "GPU_OUT_OF_MEMORY"
    assert finding.message == "nccl with 4 processes failed in rank 3: torch.OutOfMemoryError: CUDA out of memory."


def test_a_variable_that_this_run_replaced_is_noted() -> None:
    finding = found("C20.allreduce.nccl", {**SUMS, "replaced": {"NCCL_SOCKET_IFNAME": "eth0"}})
    assert finding.verdict == PASS
    assert finding.message.endswith("; this run has no network, so the image's NCCL_SOCKET_IFNAME=eth0 was not used")


EIGHT = {**BANDWIDTH, "ranks": 8, "nvlink_gb_per_s": 478.1, "environment": {}}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"busbw_gb_per_s": 472.5}, (PASS, None)),
        ({"busbw_gb_per_s": 18.0}, (FAIL, "NVLINK_UNUSED")),
        ({"busbw_gb_per_s": 18.0, "environment": {"NCCL_P2P_DISABLE": "1"}}, (WARN, "NVLINK_TURNED_OFF")),
        ({"busbw_gb_per_s": 18.0, "nvlink_gb_per_s": None}, (PASS, None)),
    ],
)
def test_bandwidth_has_a_floor_where_nvlinks_join_all_gpus(changed: dict[str, Any], expected: Any) -> None:
    assert said("C20.bandwidth.nccl", {**EIGHT, **changed}, noise=CLEAN) == expected
    assert "NVLINK_UNUSED" in machine_codes()


def test_pairs_without_peer_access_are_named() -> None:
    observed = {**BANDWIDTH, "peer_access": False, "pairs_without_peer_access": ["1-2", "1-3"]}
    assert "(1-2, 1-3)" in found("C20.bandwidth.nccl", observed, noise=CLEAN).message


def test_an_absent_interface_is_named_with_its_variable() -> None:
    error = "torch.distributed.DistBackendError: NCCL error\nLast error:\nBootstrap : no socket interface found\n"
    late = "[W1126 15:25:36.5 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called\n"
    observed = {**SUMS, "outcome": "failed", "error": error + late, "ranks": 1, "rank": 0}
    finding = found("C20.allreduce.nccl", {**observed, "environment": {"NCCL_SOCKET_IFNAME": "eth9", "OTHER": "1"}})
    assert finding.message == (
        "nccl with 1 process failed in rank 0: Bootstrap : no socket interface found (NCCL_SOCKET_IFNAME=eth9)"
    )
    assert found("C20.allreduce.nccl", observed).message.endswith("no socket interface found")
