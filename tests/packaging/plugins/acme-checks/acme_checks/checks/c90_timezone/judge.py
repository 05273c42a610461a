"""C90: does the image's clock show UTC?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.fields import number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge the offset."""
    offset = number(observation["observed"], "offset_s")
    message = f"local time is {offset:+.0f} s from UTC"
    if offset:
        return Finding(Verdict.WARN, message, "NOT_UTC", ("Set TZ=UTC in the image definition's env.",))
    return Finding(Verdict.PASS, message)
