"""What a judge returns: a finding with its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Observation = Mapping[str, Any]
"""One entry of the payload document's ``checks``."""
Spec = Mapping[str, Any]
"""What the plan promises; null means not promised."""
Env = Mapping[str, Any]
"""The payload document's ``env``."""


class Verdict(StrEnum):
    """The verdict of a check."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one observation.

    ``reason_code`` is UPPER_SNAKE and set for every verdict except PASS. ``advice`` holds lines a user can act on.
    ``rule`` is the threshold that was applied, so that the verdict can be recomputed from the record. If
    ``rule["gates"]`` is False, the finding informs and never fails a run, unless it is a FAIL whose code blames the
    machine (``machine`` in a check.yaml). ``metric`` is ``{name, value, unit, better}``.
    """

    verdict: Verdict
    message: str
    reason_code: str | None = None
    advice: tuple[str, ...] = ()
    rule: Mapping[str, Any] = field(default_factory=dict)
    metric: Mapping[str, Any] | None = None
    derived: Mapping[str, Any] = field(default_factory=dict)
