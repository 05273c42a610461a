"""Read values of untrusted JSON and YAML by type; a value of another type counts as missing."""

from __future__ import annotations

from typing import Any

_TOO_LARGE = 1e15  # NaN and infinity are not below it either


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """Return the value if it is a finite number and not a bool, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _TOO_LARGE else None
