from __future__ import annotations

from envkit.checks.c16_amp_memory.show import saved_ratios
from tests.support.records import gpu_record
from tests.support.shown import of


def test_memory_by_batch_is_read() -> None:
    checks = gpu_record()["checks"]
    assert [(item.batch, item.ratio) for item in saved_ratios(of(checks, "C16"))] == [
        (8, 12.4),
        (512, 0.95),
        (8192, 0.53),
    ]
