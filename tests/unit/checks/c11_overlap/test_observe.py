from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

c11: Any = import_module("envkit.checks.c11_overlap.observe")


@pytest.mark.parametrize(("both", "share"), [(12.0, 1.0), (22.0, 0.0), (17.0, 0.5), (24.0, -0.2)])
def test_overlap_is_the_share_of_the_shorter_that_disappears(both: float, share: float) -> None:
    assert c11.efficiency(10.0, 12.0, both) == pytest.approx(share)


@given(st.floats(0.01, 1e3), st.floats(0.01, 1e3), st.floats(0, 1))
def test_overlap_gives_back_the_share_it_was_made_from(copy: float, compute: float, share: float) -> None:
    both = copy + compute - share * min(copy, compute)
    assert c11.efficiency(copy, compute, both) == pytest.approx(share, abs=1e-6)
