"""Readers for records in which any field may be missing. A missing value is left out of the report, not an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

Tree = Mapping[str, Any]


def mapping(value: Any) -> Tree:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """Return the value if it is a list or tuple, else an empty tuple."""
    return value if isinstance(value, list | tuple) else ()


def is_number(value: Any) -> TypeGuard[float]:
    """Whether the value is a number; booleans are not."""
    # In Python, True and False are integers; in JSON they are not numbers.
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any) -> float | None:
    """Return the value if it is a number, else None."""
    return value if is_number(value) else None


def is_noisy(check: Tree) -> bool:
    """Whether the machine was busy while the finding's numbers were measured."""
    # Only checks that read a clock have a noise reading; the others count as quiet.
    return bool(mapping(check.get("noise")).get("gate", "clean") != "clean")


def check_of(check_id: object) -> str:
    """Return the ID of the check that a finding belongs to: `C05.fp32` -> `C05`."""
    return str(check_id).partition(".")[0]


def ratio(value: float | None, base: float | None) -> float | None:
    """Return `value / base`, or None if either is missing or the base is 0."""
    return value / base if value is not None and base else None
