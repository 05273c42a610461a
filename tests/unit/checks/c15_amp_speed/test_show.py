from __future__ import annotations

import pytest

from envkit.checks.c15_amp_speed.show import product_rates
from tests.support.records import gpu_record
from tests.support.shown import of


def test_products_are_read() -> None:
    checks = gpu_record()["checks"]
    rates = {item.precision: (item.tflops, item.over_fp32) for item in product_rates(of(checks, "C15"))}
    assert rates["fp32"] == (51.2, None)
    assert rates["bf16"] == pytest.approx((755.0, 755 / 51.2))
