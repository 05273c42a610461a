"""Builders of observations: dictionaries of plain JSON, for any values that a check measured."""

import math
import traceback

from .noise import for_clock

TRACEBACK_CHARS = 4000  # kept from the end
TEXT_CHARS = 2000  # per message


class Skip(Exception):  # noqa: N818 - it is a result of a check, not an error
    """Raised by a check that does not apply here. ``code`` is in UPPER_SNAKE, ``message`` is the reason."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
        self.message = message


def ran(check_id, subject, observed, controls=(), *, samples=None, stats=None, noise=None):
    """Return the observation of a check that ran: ``observed`` are its results, ``controls`` its negative controls."""
    item = _observation(check_id, subject, "ran", None, observed)
    lost = item["nonfinite"]
    item["controls"] = finite(list(controls), "controls", lost)
    item["samples"] = finite(samples, "samples", lost)
    item["stats"] = finite(stats, "stats", lost)
    item["noise"] = finite(for_clock(noise, (samples or {}).get("clock")), "noise", lost)
    return item


def skipped(check_id, subject, code, message):
    """Return the observation of a check that does not apply here, with the reason."""
    return _observation(check_id, subject, "skip", {"code": code, "message": message}, {})


def failed(check_id, subject, code, message, observed=None, *, noise=None):
    """Return the observation of a check that could not run, with the reason.

    ``noise`` is what ``pressure.Limit.readings`` returned, if it reached a time limit.
    """
    reason = {"code": code, "message": message[:TEXT_CHARS]}
    item = _observation(check_id, subject, "error", reason, observed or {})
    item["noise"] = finite(noise, "noise", item["nonfinite"])
    return item


def raised(check_id, subject, error):
    """Return the observation of a check that raised ``error``: its type, its message and the end of its traceback."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-TRACEBACK_CHARS:]
    observed = {"exception": type(error).__name__, "traceback": text}
    return failed(check_id, subject, "EXCEPTION", f"{type(error).__name__}: {error}", observed)


def control(name, held, detail=""):
    """Return the outcome of a negative control: ``held`` is True if the planted fault was noticed."""
    return {"name": name, "held": bool(held), "detail": str(detail)[:TEXT_CHARS]}


def finite(value, path="", lost=None):
    """Return ``value`` as plain JSON. NaN and infinities become None and are added to ``lost`` by their path."""
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
