"""JSON from untrusted sources: numbers within limits, and digests that do not depend on formatting.

Key order, whitespace and `1.0` instead of `1` do not change a digest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_MEASURED, LARGEST = 1e100, 1e300
"""Limits for measurements, and for values that are computed from them: computing must not overflow to infinity."""
_MOST_DIGITS = 4300  # of an integer: Python converts no longer ones


def parse(
    text: str | bytes,
    *,
    largest: float = LARGEST,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return a JSON tree; `object_pairs_hook` is that of `json.loads`.

    Raises:
        ValueError: it is not JSON, or a number in it is NaN, infinite or larger than `largest`.
        RecursionError: it is nested too deeply.
    """

    def checked(value: float, literal: str) -> float:
        if abs(value) > largest:
            raise ValueError(f"{literal[:40]} is too large")
        return value

    return json.loads(
        text,
        parse_constant=_no_constant,
        parse_float=lambda literal: checked(float(literal), literal),
        parse_int=lambda literal: checked(_integer(literal), literal),
        object_pairs_hook=object_pairs_hook,
    )


def digest_of(tree: Any) -> str:
    """Return the SHA-256 of a plain JSON tree as hex; raises ValueError for NaN and infinities."""
    text = json.dumps(_canonical(tree), sort_keys=True, separators=(",", ":"), allow_nan=False)
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which `envkit resolve` does not need

    return hashlib.sha256(text.encode()).hexdigest()


def _integer(literal: str) -> int:
    # With a message about a function that users cannot call.
    if len(literal) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(literal)} digits")
    return int(literal)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _canonical(value: Any) -> Any:
    # Other JSON writers print 1.0 as 1.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
