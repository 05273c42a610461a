"""C18: does torch.compile generate kernels, and are their results the same? It gates if the plan requires it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import last_line, mapping, number, optional_number, text
from envkit.checks.model import Finding, Verdict
from envkit.knowledge import matching

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_TRACEBACK = "Traceback (most recent call last):"
# The reason codes of the rows of known failures that stop torch.compile.
_CODES = frozenset({
    "CACHE_NOT_WRITABLE", "COMPILER_VARIABLE_EMPTY", "GPU_EXCLUSIVE", "GPU_TOO_OLD_FOR_TRITON", "NO_COMPILER",
    "NO_CUDA_LINK", "NO_PYTHON_HEADERS", "NO_TRITON", "NO_USER_NAME", "PYTHON_NOT_SUPPORTED",
})  # fmt: skip
_CONTEXT = "torch.compile, inductor, triton"
_OTHER = ("Compile by hand and read the whole error: TORCH_LOGS=+inductor python -c '...'",)


def judge(observation: Observation, spec: Spec, _env: Env) -> Finding:
    """Judge C18.inductor. Without kernels it is FAIL if the plan requires compiling, WARN if optional, else SKIP."""
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C18.result")
    features = spec.get("features")
    promise = features.get("compile") if isinstance(features, dict) else None
    required = promise == "required"
    rule = {"type": "equals", "promise": promise, "kernels": "at least one", "gates": required}
    without = {"required": Verdict.FAIL, "optional": Verdict.WARN}.get(str(promise), Verdict.SKIP)
    outcome, error = text(observed, "outcome"), observed.get("error")
    if outcome == "absent":
        advice = ("Use torch 2.0 or newer: envkit resolve --torch '>=2'",)
        return Finding(without, str(error), "COMPILE_ABSENT", advice, rule)
    if outcome == "timeout":
        message = f"torch.compile gave {error}: too slow here, or it hangs"
        return Finding(Verdict.INCONCLUSIVE, message, "COMPILE_TIME_LIMIT", ("Run it again with more CPUs.",), rule)
    if error:
        code, lines = cause(str(error))
        return Finding(without, _what_happened(str(error)), code, lines, rule)
    kernels = mapping(observed, "kernels")
    total = sum(number(kernels, suffix) for suffix in kernels)
    cold = number(observed, "cold_s")
    metric = {"name": "cold_compile", "value": cold, "unit": "s", "better": "lower"}
    derived = {"kernel_files": total, "speed_up": _speed_up(observed)}
    if not total:
        message = "torch.compile returned without generating a kernel: it ran the eager code"
        return Finding(without, message, "COMPILE_NOT_USED", _OTHER, rule, metric, derived)
    difference = number(observed, "result_error")
    if difference > row.number("fail_above"):
        message = f"compiled and eager results differ by {difference:.1e}"
        advice = ("Report it with the record: the image's compiler and torch are not compatible.",)
        rule = row.record(gates=required)
        return Finding(Verdict.FAIL, message, "COMPILE_WRONG_RESULT", advice, rule, metric, derived)
    message = f"{total:.0f} kernel files, results equal to {difference:.0e}; the first call took {cold:.1f} s"
    return Finding(Verdict.PASS, message, None, (), rule, metric, derived)


def cause(error: str) -> tuple[str, tuple[str, ...]]:
    """Return the reason code and the advice for an error of torch.compile."""
    known = matching.reason(error, _CODES, _CONTEXT)
    return ("COMPILE_FAILED", _OTHER) if known is None else (known[0], known[1].fix)


def _what_happened(error: str) -> str:
    """Return the line that says what happened: the last of a traceback, the first of a message of torch.compile."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if _TRACEBACK in lines:
        lines = [last_line(error)]
    # "backend='inductor' raised:" is followed by the exception that it raised.
    elif len(lines) > 1 and lines[0].endswith("raised:"):
        lines = [f"{lines[0]} {lines[1]}"]
    return lines[0][:300] if lines else "torch.compile failed without a message"


def _speed_up(observed: Mapping[str, Any]) -> float | None:
    eager, warm = optional_number(observed, "eager_ms"), optional_number(observed, "warm_ms")
    return eager / warm if eager is not None and warm else None
