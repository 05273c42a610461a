from importlib import import_module
from typing import Any

import pytest

amp_bench: Any = import_module("envkit.smoke.amp_bench")
c14: Any = import_module("envkit.checks.c14_amp.observe")
amp: Any = import_module("envkit.smoke.amp")


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n", True),
        ("", False),
    ],
)
def test_cpu_bfloat16_instructions(cpuinfo: str, fast: bool) -> None:
    assert amp_bench.cpu_bf16(cpuinfo) is fast


def test_worst_of_rows_keeps_what_is_not_finite() -> None:
    assert amp.worst([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": None}]) == {"a": 3.0, "b": None}
