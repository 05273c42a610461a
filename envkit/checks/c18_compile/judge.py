"""C18: does torch.compile generate kernels, and are their results the same? It gates if the plan requires it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.model import Verdict
from envkit.checks.observed import last_line, number
from envkit.knowledge import matching

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_TRACEBACK = "Traceback (most recent call last):"
# The reason codes of the rows of known failures that stop torch.compile.
_CODES = frozenset({
    "CACHE_NOT_WRITABLE", "COMPILER_VARIABLE_EMPTY", "GPU_EXCLUSIVE", "GPU_TOO_OLD_FOR_TRITON", "NO_COMPILER",
    "NO_CUDA_LINK", "NO_PYTHON_HEADERS", "NO_TRITON", "NO_USER_NAME", "PYTHON_NOT_SUPPORTED",
})  # fmt: skip
_CONTEXT = "torch.compile, inductor, triton"
_OTHER = ("Compile by hand and read the whole error: TORCH_LOGS=+inductor python -c '...'",)


def judge(case: Case) -> Finding:
    """Judge C18.inductor. Without kernels it is FAIL if the plan requires compiling, WARN if optional, else SKIP."""
    features = case.spec.get("features")
    promise = features.get("compile") if isinstance(features, dict) else None
    required = promise == "required"
    case.rule("equals", promise=promise, kernels="at least one", gates=required)
    without = {"required": Verdict.FAIL, "optional": Verdict.WARN}.get(str(promise), Verdict.SKIP)
    outcome, error = case.text("outcome"), case.observed.get("error")
    if outcome == "absent":
        advice = "Use torch 2.0 or newer: envkit resolve --torch '>=2'"
        return case.finding(without, "COMPILE_ABSENT", str(error), advice)
    if outcome == "timeout":
        message = f"torch.compile gave {error}: too slow here, or it hangs"
        return case.inconclusive("COMPILE_TIME_LIMIT", message, "Run it again with more CPUs.")
    if error:
        code, lines = cause(str(error))
        return case.finding(without, code, _what_happened(str(error)), *lines)
    kernels = case.mapping("kernels")
    total = sum(number(kernels, suffix) for suffix in kernels)
    cold, eager, warm = case.value("cold_s"), case.optional("eager_ms"), case.optional("warm_ms")
    case.metric("cold_compile", cold, "s", "lower")
    case.derive(kernel_files=total, speed_up=eager / warm if eager is not None and warm else None)
    if not total:
        message = "torch.compile returned without generating a kernel: it ran the eager code"
        return case.finding(without, "COMPILE_NOT_USED", message, *_OTHER)
    difference = case.value("result_error")
    if difference > case.number("fail_above", "C18.result"):
        case.use("C18.result", gates=required)
        advice = "Report it with the record: the image's compiler and torch are not compatible."
        return case.fail("COMPILE_WRONG_RESULT", f"compiled and eager results differ by {difference:.1e}", advice)
    return case.passed(f"{total:.0f} kernel files, results equal to {difference:.0e}; the first call took {cold:.1f} s")


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
