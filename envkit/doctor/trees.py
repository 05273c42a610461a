"""Parts of foreign JSON and YAML in the type that is needed; what has another type counts as not there."""

from __future__ import annotations

from typing import Any

_TOO_MUCH = 1e15  # not a number and infinity are not below it


def mapping(value: Any) -> dict[str, Any]:
    """A mapping, empty where it is none."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A list, empty where it is none."""
    return value if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """A finite number that is not a bool, else None."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _TOO_MUCH
    return float(value) if sound else None
