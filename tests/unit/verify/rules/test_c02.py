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


def test_a_prefix_that_is_a_link_is_compared_where_it_leads() -> None:
    observed = {"cuda": {}, "torch": {"libc10.so": ["/srv/env/libc10.so"]}, "prefix": "/srv/env"}
    assert said("C02.libraries", observed, {"prefix": "/opt/env"}) == (PASS, None)


def test_both_places_are_named() -> None:
    twice = {"libcudnn.so.9": ["/a/libcudnn.so.9", "/b/libcudnn.so.9"]}
    message = found("C02.libraries", {"cuda": twice, "torch": TORCH, "prefix": None}, {}).message
    assert message == "loaded from two places: libcudnn.so.9: /a/libcudnn.so.9, /b/libcudnn.so.9"
