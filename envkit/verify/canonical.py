"""Digests of JSON trees that survive other programs: key order, layout and `1.0` for `1` do not count."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(tree: Any) -> str:
    """SHA-256 of a plain JSON tree; raises ValueError for NaN and infinities."""
    text = json.dumps(_canonical(tree), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
