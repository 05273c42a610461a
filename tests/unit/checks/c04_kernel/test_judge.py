from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.case import Case
from envkit.checks.catalog import judges
from tests.support.judging import observation
from tests.support.verdicts import ERROR, FAIL, PASS, found, said

N = 16 * 1024 * 1024
ANSWER = {
    "outcome": "answered",
    "text": "{}",
    "total": N * N,
    "expected_total": N * N,
    "last": [2 * N - 5, 2 * N - 3, 2 * N - 1],
    "expected_last": [2 * N - 5, 2 * N - 3, 2 * N - 1],
    "init_s": 1.5,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (PASS, None)),
        ({"total": N * N - 1}, (FAIL, "WRONG_RESULT")),
        ({"last": [0, 0, 0]}, (FAIL, "WRONG_RESULT")),
        ({"last": None, "expected_last": None}, (FAIL, "WRONG_RESULT")),
        ({"total": None}, (ERROR, "MALFORMED_OBSERVATION")),
        ({"outcome": "timeout", "text": "no answer in 40 s"}, (FAIL, "GPU_HANGS")),
    ],
)
def test_kernel(changed: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C04.kernel", {**ANSWER, **changed}, subject="gpu:0") == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "DRIVER_TOO_OLD"),
        ("CUDA error: no kernel image is available for execution on the device", "NO_KERNEL_IMAGE"),
        ("AssertionError: Torch not compiled with CUDA enabled", "CPU_BUILD_INSTALLED"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128 MiB", "GPU_OUT_OF_MEMORY"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "GPU_EXCLUSIVE"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "GPU_NOT_VISIBLE"),
        ("RuntimeError: No CUDA GPUs are available", "GPU_NOT_VISIBLE"),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", "DRIVER_NOT_READY"),
        ("Error 802: system not yet initialized", "DRIVER_NOT_READY"),
        ("Segmentation fault", "KERNEL_FAILED"),
        ("", "KERNEL_FAILED"),
    ],
)
def test_an_error_is_told_by_its_words(error: str, code: str) -> None:
    observed = {"outcome": "failed", "text": f"Traceback (most recent call last):\n{error}"}
    assert said("C04.kernel", observed, subject="gpu:0") == (FAIL, code)


@pytest.mark.parametrize("value", ["", "GPU-00000000-wrong"])
def test_a_variable_that_hides_the_gpus_is_named(value: str) -> None:
    """The advice was NVIDIA_DRIVER_CAPABILITIES, which changes nothing here."""
    observed = {"outcome": "failed", "text": "RuntimeError: No CUDA GPUs are available"}
    tree = observation("C04.kernel", "gpu:0", observed=observed)
    hidden = judges()["C04"](Case(tree, {}, {"flags": {"CUDA_VISIBLE_DEVICES": value}}))
    assert hidden.advice[0].startswith(f"CUDA_VISIBLE_DEVICES={value} hides the GPUs")
    assert "NVIDIA_DRIVER_CAPABILITIES" in " ".join(judges()["C04"](Case(tree, {}, {"flags": {}})).advice)


def test_what_torch_says_after_every_error_is_no_message() -> None:
    said_by_torch = (
        "Traceback (most recent call last):",
        '  File "<string>", line 5, in <module>',
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda for more information.",
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "",
    )
    finding = found("C04.kernel", {"outcome": "failed", "text": "\n".join(said_by_torch)}, subject="gpu:0")
    assert finding.message == said_by_torch[2]


def test_the_message_is_the_last_line_of_the_error() -> None:
    observed = {"outcome": "failed", "text": "Traceback\n  File\nRuntimeError: No CUDA GPUs are available\n"}
    assert found("C04.kernel", observed).message == "RuntimeError: No CUDA GPUs are available"
