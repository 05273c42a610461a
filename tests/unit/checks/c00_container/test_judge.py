from __future__ import annotations

from typing import Any

import pytest

from tests.support.verdicts import ERROR, FAIL, PASS, SKIP, WARN, found, said

MIB = 1 << 20
GPU = {"gpu": True}
LOADER = {"loader": {"num_workers": 2, "prefetch_factor": 2, "batch_bytes": 16 * MIB}}


@pytest.mark.parametrize(
    ("nodes", "env", "spec", "expected"),
    [
        (["nvidia0"], {}, GPU, (PASS, None)),
        (["dxg"], {}, GPU, (PASS, None)),
        (["nvidia0"], {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, GPU, (PASS, None)),
        (["nvidia0"], {"NVIDIA_DRIVER_CAPABILITIES": "all"}, GPU, (PASS, None)),
        (["nvidia0"], {"NVIDIA_DRIVER_CAPABILITIES": "utility"}, GPU, (FAIL, "NO_COMPUTE_CAPABILITY")),
        ([], {}, GPU, (SKIP, "NO_GPU")),
        ([], {}, {"gpu": False}, (SKIP, "NOT_PROMISED")),
    ],
)
def test_gpu(nodes: list[str], env: dict[str, str], spec: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C00.gpu", {"device_nodes": nodes, "env": env}, spec) == expected


def test_a_missing_gpu_says_how_to_give_one() -> None:
    assert "--gpus all" in found("C00.gpu", {"device_nodes": [], "env": {}}, GPU).advice[0]


@pytest.mark.parametrize(
    ("size", "spec", "expected"),
    [
        (1024 * MIB, {"shm_mb": 1024, **LOADER}, (PASS, None)),
        (512 * MIB, {"shm_mb": 1024, **LOADER}, (WARN, "SHM_BELOW_PLAN")),
        (64 * MIB, LOADER, (WARN, "SHM_DEFAULT")),
        (65 * MIB, {}, (PASS, None)),
        (None, LOADER, (WARN, "SHM_ABSENT")),
    ],
)
def test_shm(size: int | None, spec: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C00.shm", {"bytes": size, "free_bytes": size}, spec) == expected


def test_the_advice_names_the_size_the_declared_loader_needs() -> None:
    # 2 workers x (2 + 1) batches x 16 MiB = 96 MiB, doubled and rounded up.
    assert "--shm-size=256m" in found("C00.shm", {"bytes": 64 * MIB}, LOADER).advice[0]


@pytest.mark.parametrize(
    ("limit", "spec", "expected"),
    [
        ("unlimited", GPU, (PASS, None)),
        (8 * MIB, GPU, (PASS, None)),
        (65536, GPU, (PASS, None)),
        (65535, GPU, (WARN, "MEMLOCK_TOO_SMALL")),
        (0, GPU, (WARN, "MEMLOCK_TOO_SMALL")),
        (0, {"gpu": False}, (SKIP, "NOT_PROMISED")),
        ("none", GPU, (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_memlock(limit: object, spec: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C00.memlock", {"bytes": limit}, spec) == expected


def test_a_limit_of_nothing_says_how_to_lift_it() -> None:
    finding = found("C00.memlock", {"bytes": 0}, GPU)
    assert "a limit of 0 KiB" in finding.message
    assert finding.advice == ("Start the container with --ulimit memlock=-1:-1.",)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NVIDIA_DISABLE_REQUIRE": "1"}, "driver check"),
        ({"NVIDIA_DISABLE_REQUIRE": "true"}, "driver check"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "kernel launch synchronous"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, "allocator"),
        ({"CUDA_CACHE_DISABLE": "1"}, "compile kernels from PTX again"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "precision"),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, "forbids TF32"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "hides every GPU"),
    ],
)
def test_variables_that_hurt_are_warned_of(variables: dict[str, str], words: str) -> None:
    finding = found("C00.env", {"variables": variables}, GPU)
    assert (finding.verdict, finding.reason_code) == (WARN, "BAD_CUDA_ENV")
    assert words in finding.message


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CUDA_LAUNCH_BLOCKING": "0"},
        {"NVIDIA_DISABLE_REQUIRE": ""},
        {"OMP_NUM_THREADS": "1"},
        {"CUDA_VISIBLE_DEVICES": "0"},
    ],
)
def test_other_variables_pass(variables: dict[str, str]) -> None:
    assert said("C00.env", {"variables": variables}, GPU) == (PASS, None)


def test_each_hazard_brings_its_own_advice() -> None:
    both = {"NVIDIA_DISABLE_REQUIRE": "1", "CUDA_LAUNCH_BLOCKING": "1"}
    assert len(found("C00.env", {"variables": both}, GPU).advice) == 2
