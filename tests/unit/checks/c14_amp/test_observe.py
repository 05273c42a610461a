from importlib import import_module
from typing import Any

import pytest

c14: Any = import_module("envkit.checks.c14_amp.observe")


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float16"), ((7, 0), "float16"), ((6, 1), None)],
)
def test_dtype_by_compute_capability(capability: tuple[int, int], dtype: str | None) -> None:
    assert c14.recommend(capability) == dtype
