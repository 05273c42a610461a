"""JSON trees that others may have written: numbers that can be counted with, and digests that survive other programs.

For a digest key order, layout and `1.0` for `1` do not count.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_MEASURED, LARGEST = 1e100, 1e300
"""No measurement is larger than the first; what is derived from measurements stays below the second."""


def parse(
    text: str | bytes,
    *,
    largest: float = LARGEST,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return a JSON tree; `object_pairs_hook` is that of `json.loads`.

    Raises:
        ValueError: it is no JSON, or a number in it is NaN, infinite or larger than `largest`.
        RecursionError: it is too deep.
    """

    def counted(value: float, literal: str) -> float:
        if abs(value) > largest:
            raise ValueError(f"{literal[:40]} is too large for a number")
        return value

    return json.loads(
        text,
        parse_constant=_no_constant,
        parse_float=lambda literal: counted(float(literal), literal),
        parse_int=lambda literal: counted(int(literal), literal),
        object_pairs_hook=object_pairs_hook,
    )


def digest_of(tree: Any) -> str:
    """SHA-256 of a plain JSON tree; raises ValueError for NaN and infinities."""
    text = json.dumps(_canonical(tree), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
