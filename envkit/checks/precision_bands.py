"""Which precision a relative error indicates, and whether it is the requested one. For GEMM and convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.checks.fields import MalformedError, mapping, number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from envkit.checks.thresholds import Threshold

PROMISES = ("ieee", "tf32", "fp16", "bf16")
_NAMES = {"full": "float32", "half": "TF32 or float16", "bfloat": "bfloat16"}
_PROMISED = {"ieee": "full", "tf32": "half", "fp16": "half", "bf16": "bfloat"}
# From this edge of a band on, a result is less precise than promised. bfloat16 is the least precise there is.
_TOO_COARSE = {"full": "half_min", "half": "bfloat_min", "bfloat": "fault_above"}
# One element is an outlier if its error is this many times that of the whole; rounding gives a ratio of 1.3 to 2.5.
_SPIKE = 10.0
# A relative error that rounding does not reach, except in bfloat16 with a fast algorithm, whose limit is higher.
_FAULT = 2.0e-2
_SEVERITY = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)


@dataclass(frozen=True, slots=True)
class Case:
    """One result compared with its float64 reference: errors are relative and have no unit."""

    name: str
    rel_fro: float | None
    rel_max: float | None
    nonfinite: int
    full_max: str = "full_max"
    element: str | None = None
    wide: bool = False  # a fast algorithm that loses digits is allowed


def read_case(
    name: str,
    errors: Mapping[str, Any],
    *,
    full_max: str = "full_max",
    element: str | None = None,
    wide: bool = False,
) -> Case:
    """Return a case from the payload's ``{rel_fro, rel_max, nonfinite}``; raises MalformedError for anything else."""
    nonfinite = int(number(errors, "nonfinite"))
    if nonfinite:
        return Case(name, None, None, nonfinite)
    return Case(name, number(errors, "rel_fro"), number(errors, "rel_max"), 0, full_max, element, wide)


def cluster(error: float, bands: Threshold, full_max: str = "full_max") -> str | None:
    """Return "full", "half" or "bfloat" for a relative error, or None if it is between or above the bands."""
    if error < bands.number(full_max):
        return "full"
    if bands.number("half_min") <= error <= bands.number("half_max"):
        return "half"
    if bands.number("bfloat_min") <= error <= bands.number("bfloat_max"):
        return "bfloat"
    return None


def judge_cases(
    cases: Sequence[Case],
    observed: Mapping[str, Any],
    bands: Threshold,
    elements: Threshold,
    wide: Threshold | None = None,
) -> Finding:
    """Return the worst finding over the cases. Wide cases are judged by the row `wide`.

    Raises:
        MalformedError: there are no cases, or the promise is unknown.
    """
    promise = observed.get("promise")
    if promise not in PROMISES or not cases:
        raise MalformedError(f"promise is {promise!r} with {len(cases)} cases")
    findings = [
        _judge_wide(case, promise, observed, wide)
        if case.wide and wide is not None
        else _judge(case, promise, observed, bands, elements)
        for case in cases
    ]
    return max(findings, key=_weight)


def _weight(finding: Finding) -> tuple[int, float]:
    # Only a result that is not finite has no metric. It is worse than any error.
    error = float("inf") if finding.metric is None else finding.metric["value"]
    return _SEVERITY.index(finding.verdict), error


def _judge_wide(case: Case, promise: str, observed: Mapping[str, Any], row: Threshold) -> Finding:
    """Judge a result that may come from a fast algorithm: only by an upper limit."""
    if case.rel_fro is None or case.rel_max is None:
        message = f"{case.name}: {case.nonfinite} elements are not finite"
        return Finding(Verdict.FAIL, message, "NONFINITE_RESULT", _HARDWARE, row.record())
    line = row.number(case.element or promise)
    metric = {"name": "relative_error", "value": case.rel_fro, "unit": "1", "better": "lower"}
    derived = {"case": case.name, "precision_seen": None, "element_error": case.rel_max, "promise": promise}
    error = f"{case.name}: relative error {case.rel_fro:.1e}"
    # Between the line and _FAULT the result is imprecise, above both it is wrong; bfloat16's line is above _FAULT.
    if case.rel_fro > max(line, _FAULT):
        message = f"{error} is more than rounding: the result is wrong"
        return Finding(Verdict.FAIL, message, "WRONG_RESULT", _HARDWARE, row.record(), metric, derived)
    if case.rel_fro > line:
        code = "PRECISION_OVERRIDDEN" if promise == "ieee" else "PRECISION_BELOW_PROMISE"
        message = f"{error} is less precise than {_NAMES[_PROMISED[promise]]}, which was promised"
        return Finding(Verdict.FAIL, message, code, _override_advice(observed), row.record(), metric, derived)
    if case.rel_max > line * row.number("element_over_line"):
        message = f"{case.name}: one element is off by {case.rel_max:.1e} of the largest"
        return Finding(Verdict.FAIL, message, "ELEMENT_ERROR", _HARDWARE, row.record(), metric, derived)
    return Finding(
        Verdict.PASS, f"{error}, within the limit for any algorithm", None, (), row.record(), metric, derived
    )


def _judge(case: Case, promise: str, observed: Mapping[str, Any], bands: Threshold, elements: Threshold) -> Finding:
    if case.rel_fro is None or case.rel_max is None:
        return Finding(
            Verdict.FAIL,
            f"{case.name}: {case.nonfinite} elements are not finite",
            "NONFINITE_RESULT",
            _HARDWARE,
            bands.record(),
        )
    seen = cluster(case.rel_fro, bands, case.full_max)
    verdict, code, advice, message = _band_verdict(case, promise, seen, observed, bands)
    limit = elements.number(case.element or promise)
    if seen != _PROMISED[promise]:
        # The whole result is off, so an element is an outlier only if it is far above the rest.
        limit = max(limit, _SPIKE * case.rel_fro)
    rule = bands.record()
    # The norm over the whole result hides a single wrong element, so the largest error has its own limit.
    if verdict is not Verdict.FAIL and case.rel_max > limit:
        verdict, code, advice, rule = Verdict.FAIL, "ELEMENT_ERROR", _HARDWARE, elements.record()
        message = f"{case.name}: one element is off by {case.rel_max:.1e} of the largest, more than {limit:.1e}"
    return Finding(
        verdict,
        message,
        code,
        advice,
        rule,
        {"name": "relative_error", "value": case.rel_fro, "unit": "1", "better": "lower"},
        {"case": case.name, "precision_seen": seen, "element_error": case.rel_max, "promise": promise},
    )


def _band_verdict(
    case: Case, promise: str, seen: str | None, observed: Mapping[str, Any], bands: Threshold
) -> tuple[Verdict, str | None, tuple[str, ...], str]:
    assert case.rel_fro is not None
    error = f"{case.name}: relative error {case.rel_fro:.1e}"
    wanted = _PROMISED[promise]
    if case.rel_fro > bands.number("fault_above"):
        return Verdict.FAIL, "WRONG_RESULT", _HARDWARE, f"{error} is more than rounding: the result is wrong"
    if seen == wanted:
        return Verdict.PASS, None, (), f"{error}, as expected of {_NAMES[wanted]}"
    if case.rel_fro >= bands.number(_TOO_COARSE[wanted]):
        code = "PRECISION_OVERRIDDEN" if promise == "ieee" else "PRECISION_BELOW_PROMISE"
        message = f"{error} is less precise than {_NAMES[wanted]}, which was promised"
        return Verdict.FAIL, code, _override_advice(observed), message
    if promise == "tf32" and case.rel_fro < bands.number("half_min"):
        # TF32 is a permission: small products and some layouts run in float32.
        return Verdict.PASS, None, (), f"{error}, more precise than TF32, which is allowed here"
    if seen is None:
        message = f"{error} matches no precision; {_NAMES[wanted]} was promised"
        return Verdict.WARN, "PRECISION_UNCLEAR", _unclear_advice(observed), message
    message = f"{error} is that of {_NAMES[seen]}; {_NAMES[wanted]} was promised"
    return Verdict.WARN, "PRECISION_ABOVE_PROMISE", _override_advice(observed), message


_HARDWARE = (
    "Run `dcgmi diag -r 3` on the host: a wrong result points to the GPU, its memory or the math libraries.",
    "Check that no second CUDA library shadows the installed one: `envkit verify IMAGE --only C02`.",
)


def _override_advice(observed: Mapping[str, Any]) -> tuple[str, ...]:
    environment = mapping(observed, "environment")
    lines = [f"Remove {name}={value} from the image's environment." for name, value in sorted(environment.items())]
    probe = "import torch; print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)"
    return (*lines, f'Look for code that changes the precision at start-up: `python -c "{probe}"`.')


def _unclear_advice(observed: Mapping[str, Any]) -> tuple[str, ...]:
    return (*_override_advice(observed), "Keep the record and report it: no known precision gives this error.")


def read_cases(table: Mapping[str, Any], names: Iterable[str]) -> list[Case]:
    """Return the cases called ``names`` from a table of errors."""
    return [read_case(name, mapping(table, name)) for name in names]
