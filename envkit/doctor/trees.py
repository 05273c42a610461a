"""Parts of foreign JSON and YAML in the type that is needed; what has another type counts as not there."""

from __future__ import annotations

from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    """A mapping, empty where it is none."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A list, empty where it is none."""
    return value if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """A number that is no truth value, else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
