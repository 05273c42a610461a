"""C18: does torch.compile generate kernels, and are their results the same? It gates if the plan requires it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import last_line, mapping, number, optional_number, text
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_COMPILER = (
    "Give the image a C++ compiler: `flavor: devel` in its definition, or g++ among its system packages.",
    "Or declare `compile: absent` in its smoke section.",
)
_TRACEBACK = "Traceback (most recent call last):"
# (words of the error, reason code, advice); the first that matches is the cause.
_CAUSES: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (
        # Before CACHE_NOT_WRITABLE, which matches it as well: an empty name of a compiler cannot be executed.
        ("PermissionError: [Errno 13] Permission denied: ''", "PermissionError: ''"),
        "COMPILER_VARIABLE_EMPTY",
        ("CC or CXX is empty: unset it, or set it to a compiler.",),
    ),
    (
        ("TritonMissing", "Cannot find a working triton", "No module named 'triton'"),
        "NO_TRITON",
        ("Install triton: GPU kernels are compiled with it.",),
    ),
    (
        ("too old to be supported by the triton GPU compiler",),
        "GPU_TOO_OLD_FOR_TRITON",
        ("Compile on a newer GPU, use an older torch, or declare `compile: absent` in the smoke section.",),
    ),
    (
        ("busy or unavailable",),
        "GPU_EXCLUSIVE",
        ("This GPU allows one process at a time (compute mode): nvidia-smi -c DEFAULT allows several.",),
    ),
    (
        # getpass.getuser() up to Python 3.12, and from 3.13 on.
        ("getpwuid(): uid not found", "No username set in the environment"),
        "NO_USER_NAME",
        (
            "Set USER in the image's environment, or add the user to its /etc/passwd.",
            "torch 2.11 names a folder after the user even if TORCHINDUCTOR_CACHE_DIR is set, torch 2.13 does not.",
        ),
    ),
    (("Python.h",), "NO_PYTHON_HEADERS", ("Install Python's headers: python3-dev, or Python from conda.",)),
    (
        ("InvalidCxxCompiler", "No working C++ compiler", "Failed to find C compiler", "FileNotFoundError"),
        "NO_COMPILER",
        _COMPILER,
    ),
    (
        ("Dynamo is not supported on", "not yet supported for torch.compile", "is not supported on Python"),
        "PYTHON_NOT_SUPPORTED",
        ("This torch cannot compile with this Python: envkit resolve suggests a pair that can.",),
    ),
    (
        ("libcuda.so cannot found", "-lcuda", "cuda.h"),
        "NO_CUDA_LINK",
        ("Triton cannot link libcuda: run /sbin/ldconfig in the image, or set LIBRARY_PATH to the driver's folder.",),
    ),
    (
        ("Permission denied", "Read-only file system"),
        "CACHE_NOT_WRITABLE",
        ("Give Inductor writable folders: set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR.",),
    ),
)
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
    for words, code, advice in _CAUSES:
        if any(word in error for word in words):
            return code, advice
    return "COMPILE_FAILED", _OTHER


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
