"""Conditions of traps."""

from __future__ import annotations

import pytest

from envkit.facts.conditions import check_when, concerns


@pytest.mark.parametrize(
    ("when", "name", "value", "expected"),
    [
        ({"torch": "<2.3", "numpy": ">=2"}, "torch", "2.2.2", True),
        ({"torch": "<2.3", "numpy": ">=2"}, "torch", "2.3.0", False),
        ({"torch": "2.7.* | 2.11.*"}, "torch", "2.11.0", True),
        ({"torch": "2.7.* | 2.11.*"}, "torch", "2.8.0", False),
        ({"source": "pypi | pytorch"}, "source", "pytorch", True),
        ({"source": "pypi"}, "source", "conda-forge", False),
        ({"gpu": "<7.5"}, "torch", "2.7.1", False),
    ],
)
def test_a_trap_concerns_a_value(when: dict[str, str], name: str, value: str, expected: bool) -> None:
    assert concerns(when, name, value) is expected


def test_circumstances_in_words_are_free() -> None:
    assert list(check_when({"at": "whatever | may be"})) == []
