"""C05: is the error of a matrix product the one expected of the promised precision?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import mapping
from envkit.checks.precision_bands import judge_cases, read_cases

if TYPE_CHECKING:
    from envkit.checks.model import Env, Finding, Observation, Spec


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge one precision over all sizes. The worst size decides."""
    observed = mapping(observation, "observed")
    sizes = mapping(observed, "sizes")
    rows = thresholds.load()
    return judge_cases(read_cases(sizes, sizes), observed, rows.row("C05.bands"), rows.row("C05.element"))
