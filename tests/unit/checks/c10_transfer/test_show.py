from __future__ import annotations

import pytest

from envkit.checks.c10_transfer.show import transfers
from tests.support.records import gpu_record


def test_bandwidth_is_read_with_its_limit_and_floor() -> None:
    h2d, d2h = transfers(gpu_record()["checks"])
    assert (h2d.direction, d2h.direction) == ("h2d", "d2h")
    assert h2d.pinned == {1: 21.0, 16: 48.5, 64: 53.9, 256: 55.2}
    assert h2d.limit == pytest.approx(63.0, abs=0.1)
    assert h2d.floor == pytest.approx(31.5, abs=0.1)
    assert h2d.floor_at == 256
    assert not h2d.noisy
