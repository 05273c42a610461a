from __future__ import annotations

from typing import Any

import pytest

from tests.support.verdicts import ERROR, FAIL, PASS, SKIP, WARN, found, said

PROMISED = {
    "gpu": True,
    "python": "3.12",
    "torch": "2.7.1",
    "local_version": "cu126",
    "cuda": "12.6",
    "cudnn": "9.5.1",
    "nccl": "2.26.2",
    "triton": "3.3.1",
    "torchvision": "0.22.1",
}


@pytest.mark.parametrize(
    ("component", "observed", "expected"),
    [
        ("python", {"found": "3.12.7"}, (PASS, None)),
        ("python", {"found": "3.1.2"}, (FAIL, "PYTHON_MISMATCH")),
        ("python", {"found": "3.11.9"}, (FAIL, "PYTHON_MISMATCH")),
        ("torch", {"found": "2.7.1+cu126"}, (PASS, None)),
        ("torch", {"found": "2.7.1+cu128"}, (FAIL, "TORCH_MISMATCH")),
        ("torch", {"found": "2.7.1"}, (FAIL, "TORCH_MISMATCH")),
        ("torch", {"found": "2.7.0+cu126"}, (FAIL, "TORCH_MISMATCH")),
        ("torch", {"found": None, "error": "ImportError: libcudnn.so.9"}, (FAIL, "TORCH_BROKEN")),
        ("torch", {"found": None}, (FAIL, "TORCH_MISSING")),
        ("cuda", {"found": "12.6"}, (PASS, None)),
        ("cuda", {"found": "12.6.3"}, (PASS, None)),
        ("cuda", {"found": "12.8"}, (FAIL, "CUDA_MISMATCH")),
        ("cuda", {"found": None, "hip": None}, (FAIL, "CPU_BUILD_INSTALLED")),
        ("cudnn", {"found": "9.5.1", "compiled": "9.5.1"}, (PASS, None)),
        ("cudnn", {"found": "9.5.0", "compiled": "9.5.1"}, (PASS, None)),
        ("cudnn", {"found": "9.10.2", "compiled": "9.10.2"}, (PASS, None)),
        ("cudnn", {"found": "9.10.2", "compiled": "9.5.1"}, (WARN, "CUDNN_DRIFT")),
        ("cudnn", {"found": "9.5.1", "compiled": "9.10.2"}, (FAIL, "CUDNN_OLDER_THAN_COMPILED")),
        ("cudnn", {"found": "9.1.0", "compiled": "9.1.0"}, (FAIL, "CUDNN_MISMATCH")),
        ("cudnn", {"found": "8.9.2", "compiled": "8.9.2"}, (FAIL, "CUDNN_MISMATCH")),
        ("cudnn", {"found": None}, (FAIL, "CUDNN_MISSING")),
        ("cudnn", {"found": None, "error": "libcudnn.so.9: cannot open"}, (ERROR, "CUDNN_UNREADABLE")),
        ("nccl", {"found": "2.27.3", "compiled": "2.27.3"}, (PASS, None)),
        ("nccl", {"found": "2.21.5", "compiled": "2.21.5"}, (FAIL, "NCCL_MISMATCH")),
        ("triton", {"found": "3.3.1"}, (PASS, None)),
        ("triton", {"found": None}, (FAIL, "TRITON_MISSING")),
        ("torchvision", {"found": "0.22.1+cu126", "works": True}, (PASS, None)),
        ("torchvision", {"found": "0.21.0", "works": True}, (FAIL, "TORCHVISION_MISMATCH")),
        ("torchvision", {"found": "0.22.1", "works": False, "error": "no nms"}, (FAIL, "TORCHVISION_BROKEN")),
        ("torchaudio", {"found": "2.7.1"}, (SKIP, "NOT_PROMISED")),
        ("numpy", {"found": "2.1.0", "round_trip": True}, (PASS, None)),
        ("numpy", {"found": "2.1.0", "round_trip": False, "error": "Numpy is not available"}, (FAIL, "NUMPY_ABI")),
        ("numpy", {"found": None, "round_trip": None}, (SKIP, "NOT_PROMISED")),
        ("spec", {"unknown_fields": []}, (PASS, None)),
    ],
)
def test_components(component: str, observed: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said(f"C01.{component}", observed, PROMISED) == expected


@pytest.mark.parametrize("component", ["python", "torch", "cuda", "cudnn", "nccl", "triton", "torchvision"])
def test_what_is_not_promised_is_a_skip_that_tells_what_was_found(component: str) -> None:
    finding = found(f"C01.{component}", {"found": "1.2.3"}, {})
    assert (finding.verdict, finding.reason_code) == (SKIP, "NOT_PROMISED")
    assert "1.2.3" in finding.message


@pytest.mark.parametrize("local", ["cu126", "+cu126", "2.7.1+cu126"])
def test_the_local_version_may_be_written_in_each_of_its_forms(local: str) -> None:
    spec = {**PROMISED, "local_version": local}
    assert said("C01.torch", {"found": "2.7.1+cu126"}, spec) == (PASS, None)
    assert said("C01.torch", {"found": "2.7.1+cpu"}, spec) == (FAIL, "TORCH_MISMATCH")


def test_without_a_promised_local_version_only_the_release_counts() -> None:
    assert said("C01.torch", {"found": "2.7.1+cu126"}, {"torch": "2.7.1", "local_version": None}) == (PASS, None)


def test_a_cuda_build_in_a_cpu_image_is_a_warning() -> None:
    assert said("C01.cuda", {"found": "12.6"}, {"gpu": False, "cuda": None}) == (WARN, "CUDA_BUILD_INSTALLED")


def test_a_promise_no_check_knows_is_an_error_and_an_empty_one_is_not() -> None:
    observed = {"unknown_fields": ["flash_attention"]}
    assert said("C01.spec", observed, {"flash_attention": "2.8"}) == (ERROR, "SPEC_FIELD_UNKNOWN")
    promise = {"torch": "2.7.1", "python": "3.12", "flash_attention": None}
    assert said("C01.spec", observed, promise) == (PASS, None)
    # Without a plan nothing agrees with it.
    assert said("C01.spec", {"unknown_fields": []}, {"flash_attention": None}) == (SKIP, "NOT_PROMISED")


def test_the_mismatch_names_both_versions() -> None:
    assert found("C01.cuda", {"found": "11.8"}, PROMISED).message == "cuda is 11.8, the plan says 12.6"
