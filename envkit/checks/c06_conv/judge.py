"""C06: are the errors of a convolution and of both gradients those expected of the promised precision?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import MalformedError, flag, mapping
from envkit.checks.model import Finding, Verdict
from envkit.checks.precision_bands import Case, judge_cases, read_case

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

PARTS = ("forward", "grad_input", "grad_weight")


def judge(observation: Observation, spec: Spec, _env: Env) -> Finding:
    """Judge one precision over both layouts, the library on and off, and the three results. The worst decides."""
    observed = mapping(observation, "observed")
    rows = thresholds.load()
    bands = rows.row("C06.bands")
    if observed.get("library") == "cudnn" and spec.get("cudnn") is not None and not flag(observed, "library_available"):
        return Finding(
            Verdict.FAIL,
            f"torch finds no cuDNN; {spec['cudnn']} was promised",
            "CUDNN_UNAVAILABLE",
            ("Check the installed sub-libraries: `envkit verify IMAGE --only C01,C02`.",),
            bands.record(),
        )
    cases = [case for name, parts in mapping(observed, "cases").items() for case in _cases(name, parts, observed)]
    return judge_cases(cases, observed, bands, rows.row("C06.element"), rows.row("C06.stride1"))


def _cases(name: str, parts: Any, observed: Mapping[str, Any]) -> list[Case]:
    if not isinstance(parts, dict):
        raise MalformedError(f"cases.{name} is not an object")
    # Only float32 is precise enough to show the order of the long sums in a weight gradient.
    long_sum = observed.get("promise") == "ieee"
    return [
        read_case(
            f"{name} {part}",
            mapping(parts, part),
            full_max="full_max_grad_weight" if part == "grad_weight" else "full_max",
            element="ieee_grad_weight" if part == "grad_weight" and long_sum else None,
            wide=name.startswith("stride1."),
        )
        for part in PARTS
    ]
