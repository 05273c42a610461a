from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

c15: Any = import_module("envkit.checks.c15_amp_speed.observe")
one_gpu: Any = import_module("envkit.smoke.one_gpu")


def test_products_grow_with_the_device() -> None:
    assert [c15.gemm_size(capability) for capability in (None, (7, 5), (8, 9), (9, 0), (12, 0))] == [
        768,
        4096,
        4096,
        8192,
        8192,
    ]


def test_rates_count_two_operations_per_multiplication() -> None:
    assert one_gpu.tflops(1000, 2.0) == pytest.approx(1.0)
    assert one_gpu.tflops(1000, 0.0) is None
