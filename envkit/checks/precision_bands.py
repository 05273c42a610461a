"""Which precision a relative error indicates, and whether it is the requested one. For GEMM and convolution."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from envkit.checks.model import Verdict
from envkit.checks.observed import MalformedError, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from envkit.checks.case import Case
    from envkit.checks.model import Finding
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
class Result:
    """One result compared with its float64 reference: errors are relative and have no unit."""

    name: str
    rel_fro: float
    rel_max: float
    nonfinite: int = 0
    full_max: str = "full_max"
    element: str | None = None
    wide: bool = False  # a fast algorithm that loses digits is allowed


def read_result(
    name: str,
    errors: Mapping[str, Any],
    *,
    full_max: str = "full_max",
    element: str | None = None,
    wide: bool = False,
) -> Result:
    """Return a result from the payload's ``{rel_fro, rel_max, nonfinite}``; raises MalformedError for anything else."""
    nonfinite = int(number(errors, "nonfinite"))
    if nonfinite:
        return Result(name, inf, inf, nonfinite)
    return Result(name, number(errors, "rel_fro"), number(errors, "rel_max"), 0, full_max, element, wide)


def cluster(error: float, bands: Threshold, full_max: str = "full_max") -> str | None:
    """Return "full", "half" or "bfloat" for a relative error, or None if it is between or above the bands."""
    if error < bands.number(full_max):
        return "full"
    if bands.number("half_min") <= error <= bands.number("half_max"):
        return "half"
    if bands.number("bfloat_min") <= error <= bands.number("bfloat_max"):
        return "bfloat"
    return None


def judge_results(case: Case, results: Sequence[Result], *, wide: str = "") -> Finding:
    """Return the worst finding over the results by the check's rows `bands` and `element`, wide ones by the row `wide`.

    Raises:
        MalformedError: there are no results, or the promise is unknown.
    """
    promise = case.observed.get("promise")
    if promise not in PROMISES or not results:
        raise MalformedError(f"promise is {promise!r} with {len(results)} cases")
    return max((_judge(case.blank(), result, promise, wide) for result in results), key=_weight)


def _weight(finding: Finding) -> tuple[int, float]:
    # Only a result that is not finite has no metric. It is worse than any error.
    return _SEVERITY.index(finding.verdict), inf if finding.metric is None else finding.metric["value"]


def _judge(case: Case, result: Result, promise: str, wide: str) -> Finding:
    bands = case.use(f"{case.check}.bands")
    if result.nonfinite:
        return case.fail("NONFINITE_RESULT", f"{result.name}: {result.nonfinite} elements are not finite", *_HARDWARE)
    seen = None if result.wide else cluster(result.rel_fro, bands, result.full_max)
    case.metric("relative_error", result.rel_fro, "1", "lower")
    case.derive(case=result.name, precision_seen=seen, element_error=result.rel_max, promise=promise)
    return _by_line(case, result, promise, wide) if result.wide else _by_band(case, result, promise, seen)


def _by_line(case: Case, result: Result, promise: str, row: str) -> Finding:
    """Judge a result that may come from a fast algorithm: only by an upper limit."""
    case.use(row)
    line = case.number(result.element or promise)
    error = f"{result.name}: relative error {result.rel_fro:.1e}"
    # Between the line and _FAULT the result is imprecise, above both it is wrong; bfloat16's line is above _FAULT.
    if result.rel_fro > max(line, _FAULT):
        return case.fail("WRONG_RESULT", f"{error} is more than rounding: the result is wrong", *_HARDWARE)
    if result.rel_fro > line:
        return _too_coarse(case, error, promise)
    if result.rel_max > line * case.number("element_over_line"):
        message = f"{result.name}: one element is off by {result.rel_max:.1e} of the largest"
        return case.fail("ELEMENT_ERROR", message, *_HARDWARE)
    return case.passed(f"{error}, within the limit for any algorithm")


def _by_band(case: Case, result: Result, promise: str, seen: str | None) -> Finding:
    finding = _band(case, result, promise, seen)
    elements = f"{case.check}.element"
    limit = case.number(result.element or promise, elements)
    if seen != _PROMISED[promise]:
        # The whole result is off, so an element is an outlier only if it is far above the rest.
        limit = max(limit, _SPIKE * result.rel_fro)
    # The norm over the whole result hides a single wrong element, so the largest error has its own limit.
    if finding.verdict is Verdict.FAIL or result.rel_max <= limit:
        return finding
    case.use(elements)
    message = f"{result.name}: one element is off by {result.rel_max:.1e} of the largest, more than {limit:.1e}"
    return case.fail("ELEMENT_ERROR", message, *_HARDWARE)


def _band(case: Case, result: Result, promise: str, seen: str | None) -> Finding:
    error = f"{result.name}: relative error {result.rel_fro:.1e}"
    wanted = _PROMISED[promise]
    if result.rel_fro > case.number("fault_above"):
        return case.fail("WRONG_RESULT", f"{error} is more than rounding: the result is wrong", *_HARDWARE)
    if seen == wanted:
        return case.passed(f"{error}, as expected of {_NAMES[wanted]}")
    if result.rel_fro >= case.number(_TOO_COARSE[wanted]):
        return _too_coarse(case, error, promise)
    if promise == "tf32" and result.rel_fro < case.number("half_min"):
        # TF32 is a permission: small products and some layouts run in float32.
        return case.passed(f"{error}, more precise than TF32, which is allowed here")
    if seen is None:
        message = f"{error} matches no precision; {_NAMES[wanted]} was promised"
        report = "Keep the record and report it: no known precision gives this error."
        return case.warn("PRECISION_UNCLEAR", message, *_override_advice(case), report)
    message = f"{error} is that of {_NAMES[seen]}; {_NAMES[wanted]} was promised"
    return case.warn("PRECISION_ABOVE_PROMISE", message, *_override_advice(case))


def _too_coarse(case: Case, error: str, promise: str) -> Finding:
    code = "PRECISION_OVERRIDDEN" if promise == "ieee" else "PRECISION_BELOW_PROMISE"
    message = f"{error} is less precise than {_NAMES[_PROMISED[promise]]}, which was promised"
    return case.fail(code, message, *_override_advice(case))


_HARDWARE = (
    "Run `dcgmi diag -r 3` on the host: a wrong result points to the GPU, its memory or the math libraries.",
    "Check that no second CUDA library shadows the installed one: `envkit verify IMAGE --only C02`.",
)


def _override_advice(case: Case) -> tuple[str, ...]:
    environment = case.mapping("environment")
    lines = [f"Remove {name}={value} from the image's environment." for name, value in sorted(environment.items())]
    probe = "import torch; print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)"
    return (*lines, f'Look for code that changes the precision at start-up: `python -c "{probe}"`.')
