"""Normalize the payload's parsed document: values of the wrong type are ignored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,60}")
_SAMPLES = {"unit": str, "n": int, "values": list}


def normalized(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with every field in its type. A control of the wrong type counts as failed."""
    env = document["env"]
    host, software, flags = (_object(env.get(name)) for name in ("host", "sw", "flags"))
    cards = [item for item in _list(env.get("gpu")) if isinstance(item, dict)]
    return {
        **document,
        "env": {"host": host, "gpu": cards, "sw": software, "flags": flags},
        "checks": [_observation(item) for item in document["checks"]],
    }


def _observation(item: Mapping[str, Any]) -> dict[str, Any]:
    reason = item.get("reason")
    return {
        **item,
        "reason": None if reason is None else {"code": _code(reason["code"]), "message": _text(reason.get("message"))},
        "controls": [_control(control) for control in item["controls"]],
        "samples": _samples(item.get("samples")),
        "stats": {name: _number(value) for name, value in _object(item.get("stats")).items()} or None,
        "noise": _object(item.get("noise")) or None,
        "duration_s": _number(item.get("duration_s")),
    }


def _control(item: Any) -> dict[str, Any]:
    control = _object(item)
    passed = control.get("held") is True
    return {"name": _text(control.get("name")) or "unnamed", "held": passed, "detail": _text(control.get("detail"))}


def _samples(item: Any) -> dict[str, Any] | None:
    samples = _object(item)
    sound = all(isinstance(samples.get(name), kind) for name, kind in _SAMPLES.items())
    # The comparison also refuses NaN, which is not equal to itself.
    return samples if sound and all(_number(value) == value for value in samples["values"]) else None


def _code(value: str) -> str:
    return value if _CODE.fullmatch(value) else "UNKNOWN"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
