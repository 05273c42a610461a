from __future__ import annotations

import pytest

from envkit.checks.c18_compile.show import compiled
from tests.support.records import gpu_record
from tests.support.shown import of


def test_the_compiler_is_read() -> None:
    checks = gpu_record()["checks"]
    made = compiled(of(checks, "C18"))
    assert made is not None
    assert (made.first_s, made.kernels) == (8.31, 6)
    assert made.speed_up == pytest.approx(0.128 / 0.071)
