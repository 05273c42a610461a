from __future__ import annotations

import pytest

from envkit.checks.c14_amp.show import precisions
from tests.support.records import gpu_record
from tests.support.shown import of


def test_precisions_are_read() -> None:
    checks = gpu_record()["checks"]
    bf16 = next(item for item in precisions(of(checks, "C14")) if (item.network, item.precision) == ("mlp", "bf16"))
    assert (bf16.time_ratio, bf16.memory_ratio) == pytest.approx((1.4 / 9.1, 301 / 512))
