"""Builders of observations: plain dictionaries that survive JSON, whatever a check measured."""

import math
import traceback

from .noise import felt

TRACEBACK_CHARS = 4000  # the end of it
TEXT_CHARS = 2000  # of one message


class Skip(Exception):  # noqa: N818 - it is a result of a check, not an error
    """Raised by a check that does not apply here. ``code`` is UPPER_SNAKE, ``message`` says why."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
        self.message = message


def ran(check_id, subject, observed, controls=(), *, samples=None, stats=None, noise=None):
    """Return an observation of a check that ran; ``observed`` holds what it saw, ``controls`` what had to fail."""
    found = _observation(check_id, subject, "ran", None, observed)
    lost = found["nonfinite"]
    found["controls"] = finite(list(controls), "controls", lost)
    found["samples"] = finite(samples, "samples", lost)
    found["stats"] = finite(stats, "stats", lost)
    found["noise"] = finite(felt(noise, (samples or {}).get("clock")), "noise", lost)
    return found


def skipped(check_id, subject, code, message):
    """Return an observation of a check that does not apply here, with the reason."""
    return _observation(check_id, subject, "skip", {"code": code, "message": message}, {})


def failed(check_id, subject, code, message, observed=None):
    """Return an observation of a check that could not run, with the reason."""
    reason = {"code": code, "message": message[:TEXT_CHARS]}
    return _observation(check_id, subject, "error", reason, observed or {})


def raised(check_id, subject, error):
    """Return an observation of a check that raised ``error``: its type, its message and a shortened traceback."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-TRACEBACK_CHARS:]
    observed = {"exception": type(error).__name__, "traceback": text}
    return failed(check_id, subject, "EXCEPTION", f"{type(error).__name__}: {error}", observed)


def control(name, held, detail=""):
    """Return the outcome of a negative control: ``held`` is True when the fault planted on purpose was noticed."""
    return {"name": name, "held": bool(held), "detail": str(detail)[:TEXT_CHARS]}


def finite(value, path="", lost=None):
    """Return ``value`` as plain JSON: numbers that JSON lacks become None and are noted in ``lost`` by their path."""
    lost = {} if lost is None else lost
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        lost[path] = repr(value)
        return None
    if isinstance(value, dict):
        return {str(key): finite(item, f"{path}.{key}" if path else str(key), lost) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [finite(item, f"{path}[{index}]", lost) for index, item in enumerate(items)]
    return str(value)


def _observation(check_id, subject, status, reason, observed):
    lost = {}
    return {
        "id": check_id,
        "subject": subject,
        "status": status,
        "reason": reason,
        "observed": finite(observed, "observed", lost),
        "controls": [],
        "samples": None,
        "stats": None,
        "noise": None,
        "nonfinite": lost,
        "duration_s": None,
    }
