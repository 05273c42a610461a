"""Reading a record that may lack any field: a missing value is not an error here, it is not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

Tree = Mapping[str, Any]


def mapping(value: Any) -> Tree:
    """Return the value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """Return the value where it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def is_number(value: Any) -> TypeGuard[float]:
    """Whether the value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any) -> float | None:
    """Return the value where it is a number, else None."""
    return value if is_number(value) else None


def is_noisy(check: Tree) -> bool:
    """Whether the machine was busy while the finding's numbers were taken."""
    return bool(mapping(check.get("noise")).get("gate", "clean") != "clean")


def check_of(check_id: object) -> str:
    """Return the check a finding belongs to: `C05.fp32` -> `C05`."""
    return str(check_id).partition(".")[0]


def ratio(value: float | None, base: float | None) -> float | None:
    """Return `value / base`, None where one is missing or the base is 0."""
    return value / base if value is not None and base else None
