from __future__ import annotations

from typing import Any

import pytest

from tests.support.verdicts import FAIL, PASS, WARN, found, said

SITE = "/opt/env/lib/python3.12/site-packages"
CUDA = {"libcudnn.so.9": [f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"], "libcuda.so.1": ["/usr/lib/libcuda.so.580.95.05"]}
TORCH = {"libc10.so": [f"{SITE}/torch/lib/libc10.so"]}
PROMISED = {"cuda": "12.6", "prefix": "/opt/env"}


@pytest.mark.parametrize(
    ("cuda", "spec", "expected"),
    [
        (CUDA, PROMISED, (PASS, None)),
        ({}, PROMISED, (FAIL, "NO_CUDA_LIBRARY")),
        ({"libcuda.so.1": CUDA["libcuda.so.1"]}, PROMISED, (FAIL, "NO_CUDA_LIBRARY")),
        ({}, {"cuda": None, "prefix": "/opt/env"}, (PASS, None)),
        (
            {"libcudnn.so.9": [*CUDA["libcudnn.so.9"], "/usr/local/cuda/lib64/libcudnn.so.9"]},
            PROMISED,
            (FAIL, "LIBRARY_LOADED_TWICE"),
        ),
        ({"libcudnn.so.9": ["/usr/local/cuda/lib64/libcudnn.so.9"]}, PROMISED, (WARN, "LIBRARY_OUTSIDE_PREFIX")),
        ({"libcudnn.so.9": ["/opt/environment/libcudnn.so.9"]}, PROMISED, (WARN, "LIBRARY_OUTSIDE_PREFIX")),
        ({"libcudnn.so.9": ["/usr/lib/libcudnn.so.9"]}, {"cuda": "12.6", "prefix": None}, (PASS, None)),
        ({**CUDA, "libcuda.so": ["/usr/local/cuda/lib64/stubs/libcuda.so"]}, PROMISED, (FAIL, "CUDA_STUB_LOADED")),
    ],
)
def test_libraries(cuda: dict[str, Any], spec: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C02.libraries", {"cuda": cuda, "torch": TORCH, "prefix": None}, spec) == expected


@pytest.mark.parametrize(
    "paths",
    [
        # Started in WSL itself: the first one only finds the second.
        {"libcuda.so.1.1": ["/usr/lib/wsl/lib/libcuda.so.1.1", "/usr/lib/wsl/drivers/nv_1/libcuda.so.1.1"]},
        # In a container there, where the first one goes by its other name.
        {
            "libcuda_loader.so": ["/usr/lib/wsl/drivers/nv_1/libcuda_loader.so"],
            "libcuda.so.1.1": ["/usr/lib/wsl/drivers/nv_1/libcuda.so.1.1"],
        },
        {"libcudadebugger.so.580.95.05": ["/usr/lib/libcudadebugger.so.580.95.05"]},
    ],
)
def test_what_a_driver_brings_is_no_stranger(paths: dict[str, list[str]]) -> None:
    observed = {"cuda": {**CUDA, **paths}, "torch": TORCH, "prefix": None}
    assert said("C02.libraries", observed, PROMISED) == (PASS, None)


def test_two_libraries_of_a_driver_are_one_too_many() -> None:
    paths = {"libcuda.so.1": ["/usr/lib/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1"]}
    observed = {"cuda": {**CUDA, **paths}, "torch": TORCH, "prefix": None}
    assert said("C02.libraries", observed, PROMISED) == (FAIL, "LIBRARY_LOADED_TWICE")


def test_a_prefix_that_is_a_link_is_compared_where_it_leads() -> None:
    observed = {"cuda": {}, "torch": {"libc10.so": ["/srv/env/libc10.so"]}, "prefix": "/srv/env"}
    assert said("C02.libraries", observed, {"prefix": "/opt/env"}) == (PASS, None)


def test_both_places_are_named() -> None:
    twice = {"libcudnn.so.9": ["/a/libcudnn.so.9", "/b/libcudnn.so.9"]}
    message = found("C02.libraries", {"cuda": twice, "torch": TORCH, "prefix": None}, {}).message
    assert message == "loaded from two places: libcudnn.so.9: /a/libcudnn.so.9, /b/libcudnn.so.9"


BUILTINS = (
    "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n"
    "  Make sure that libnvrtc-builtins.so.13.0 is installed correctly."
)


def test_nvrtc_without_its_built_in_functions_fails() -> None:
    # An H200 ran an image without them: 124 checks passed, and cuDNN's attention was refused.
    told = found("C02.nvrtc", {"library": f"{SITE}/nvidia/cu13/lib/libnvrtc.so.13", "error": BUILTINS})
    assert (told.verdict, told.reason_code) == (FAIL, "NVRTC_FAILS")
    assert "failed to open libnvrtc-builtins.so.13.0" in told.message
    works = {"library": f"{SITE}/nvidia/cu13/lib/libnvrtc.so.13", "error": None}
    assert said("C02.nvrtc", works) == (PASS, None)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        ({"error": None, "largest_difference": 0.0}, (PASS, None)),
        ({"error": None, "largest_difference": 0.5}, (FAIL, "LINALG_WRONG")),
        (
            {"error": "libcusolver.so.12: cannot open shared object file", "largest_difference": None},
            (FAIL, "LINALG_FAILS"),
        ),
    ],
)
def test_linear_algebra_on_the_gpu(observed: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C02.linalg", observed, subject="gpu:0") == expected
