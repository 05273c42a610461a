"""C14: does autocast lower what it should, does the scaler protect the weights, are errors small? Speed informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, optional_number, text, timed
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec
    from envkit.checks.thresholds import Threshold

# The dtypes of results under autocast; "low" is the requested dtype. CPU autocast leaves softmax and layer_norm low
# (measured with torch 2.13); CUDA lists both as float32 (PyTorch's autocast op reference).
DTYPE_TABLE = {
    "cpu": {"mm": "low", "linear": "low", "conv2d": "low", "cross_entropy": "float32", "add": "float32"},
    "gpu": {
        "mm": "low",
        "linear": "low",
        "conv2d": "low",
        "cross_entropy": "float32",
        "softmax": "float32",
        "layer_norm": "float32",
        "add": "float32",
    },
}
_EXACT = {"type": "equals", "gates": True, "unit": "1"}
_ERROR_ADVICE = (
    "Compare with `envkit verify IMAGE --only C05,C06`: a wrong product shows there first.",
    "Train in bfloat16 where the GPU has it, or in float32, until the cause is found.",
)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge by the second part of the id: dtype_choice, dtypes, grad_scaler, underflow, error or bench."""
    observed = mapping(observation, "observed")
    part = str(observation["id"]).split(".")[1:2]
    if part == ["dtype_choice"]:
        return _choice(observed)
    if part == ["dtypes"]:
        return _dtypes(observed, str(observation["subject"]))
    if part == ["grad_scaler"]:
        return _scaler(observed)
    if part == ["underflow"]:
        return _underflow(observed)
    if part == ["error"]:
        return _judge_error(observed)
    return _judge_bench(observation)


def _choice(observed: Mapping[str, Any]) -> Finding:
    recommended = observed.get("recommended")
    rule = {"type": "informs", "gates": False}
    if observed.get("bf16_claimed") is True and not flag(observed, "bf16_native"):
        message = f"torch reports bfloat16, but emulates it, slower than float32; use {recommended or 'float32'}"
        advice = (
            "Ask torch.cuda.is_bf16_supported(including_emulation=False).",
            f"Train with torch.autocast('cuda', dtype=torch.{recommended or 'float32'}).",
        )
        return Finding(Verdict.WARN, message, "BF16_EMULATED", advice, rule)
    return Finding(Verdict.PASS, f"recommended for mixed precision: {recommended or 'float32 only'}", None, (), rule)


def _dtypes(observed: Mapping[str, Any], subject: str) -> Finding:
    requested, table = text(observed, "requested"), mapping(observed, "table")
    expected = DTYPE_TABLE["gpu" if subject.startswith("gpu") else "cpu"]
    wanted = {name: requested if kind == "low" else kind for name, kind in expected.items()}
    wrong = {name: text(table, name) for name, dtype in wanted.items() if text(table, name) != dtype}
    rule = {**_EXACT, "expected": wanted}
    if "mm" in wrong:
        message = f"autocast to {requested} has no effect: mm gives {wrong['mm']}"
        device = "cuda" if subject.startswith("gpu") else "cpu"
        advice = (f"Name the device the tensors are on: torch.autocast({device!r}, dtype=torch.{requested}).",)
        return Finding(Verdict.FAIL, message, "AMP_INERT", advice, rule)
    if wrong:
        parts = ", ".join(f"{name} gives {dtype}, not {wanted[name]}" for name, dtype in sorted(wrong.items()))
        advice = ("Compare with PyTorch's autocast op reference for this version of torch.",)
        return Finding(Verdict.FAIL, f"autocast to {requested}: {parts}", "AMP_DTYPES", advice, rule)
    return Finding(Verdict.PASS, f"autocast gives {requested} for mm, linear and conv2d", None, (), rule)


def _scaler(observed: Mapping[str, Any]) -> Finding:
    before, after = number(observed, "scale_before"), number(observed, "scale_after_inf")
    properties = {
        "an infinite gradient reached the weights": flag(observed, "weights_equal_after_inf"),
        # The default backoff_factor of GradScaler is 0.5.
        f"the scale went from {before:g} to {after:g}, not to half": after == before / 2,
        "the unscaled gradient is not exact": flag(observed, "unscaled_gradient_exact"),
        "a finite gradient moved no weight": flag(observed, "weights_moved_after_finite"),
        "a finite step changed the scale": number(observed, "scale_after_finite") == after,
    }
    broken = [what for what, holds in properties.items() if not holds]
    if broken:
        advice = ("Train in bfloat16 where the GPU has it, or with another release of torch: `envkit matrix list`.",)
        return Finding(Verdict.FAIL, "GradScaler: " + "; ".join(broken), "GRAD_SCALER", advice, _EXACT)
    return Finding(Verdict.PASS, f"an infinite step is skipped, scale {before:g} to {after:g}", None, (), _EXACT)


def _underflow(observed: Mapping[str, Any]) -> Finding:
    row = thresholds.load().row("C14.underflow")
    value = number(observed, "value")
    errors = {name: abs(number(observed, name) - value) / value for name in ("fp16_scaled", "bf16")}
    lost = [name for name, error in errors.items() if error > row.number(name)]
    metric = {"name": "relative_error", "value": max(errors.values()), "unit": "1", "better": "lower"}
    if lost:
        message = f"{value:g} does not survive: " + ", ".join(f"{name} off by {errors[name]:.1e}" for name in lost)
        advice = ("Look for flush-to-zero settings: torch.set_flush_denormal, or a compiler's fast-math flag.",)
        return Finding(Verdict.FAIL, message, "UNDERFLOW", advice, row.record(), metric, errors)
    message = f"{value:g} survives in float16 with scaling and in bfloat16"
    return Finding(Verdict.PASS, message, None, (), row.record(), metric, errors)


def _judge_error(observed: Mapping[str, Any]) -> Finding:
    """Judge the first step's loss, the gradient's direction and length, and that the loss falls."""
    rows = thresholds.load()
    precision, network = text(observed, "precision"), text(observed, "network")
    measured = {
        "loss": optional_number(observed, "loss_rel_err"),
        "gradient": optional_number(observed, "grad_rel_l2"),
        "direction": optional_number(observed, "grad_one_minus_cos"),
        "progress": optional_number(observed, "loss_ratio_low"),
        "float32's progress": optional_number(observed, "loss_ratio_fp32"),
    }
    limits = {
        "loss": _loss_limit(rows.row("C14.loss"), precision),
        "gradient": (rows.row("C14.gradient"), precision),
        "direction": (rows.row("C14.direction"), "fail_above"),
        "progress": (rows.row("C14.progress"), "fail_above"),
        "float32's progress": (rows.row("C14.progress"), "fail_above"),
    }
    gradient = measured["gradient"]
    metric = {"name": "gradient_relative_l2", "value": gradient, "unit": "1", "better": "lower"}
    subject = f"{network} in {precision}"
    for name, value in measured.items():
        row, key = limits[name]
        if value is None:
            message = f"{subject}: the {name} is not finite"
            return Finding(Verdict.FAIL, message, "NONFINITE_RESULT", _ERROR_ADVICE, row.record())
        if value > row.number(key):
            message = f"{subject}: {name} {value:.1e}, above {row.number(key):.1e}"
            return Finding(Verdict.FAIL, message, "AMP_ERROR", _ERROR_ADVICE, row.record(), metric, measured)
    loss = measured["loss"]
    message = f"{subject}: loss off by {loss:.1e}, gradient by {gradient:.1e} of float32"
    return Finding(Verdict.PASS, message, None, (), rows.row("C14.gradient").record(), metric, measured)


def _loss_limit(row: Threshold, precision: str) -> tuple[Threshold, str]:
    # The tables of older records have one number for both precisions, taken from a CPU.
    return row, precision if precision in row.values else "fail_above"


def _judge_bench(observation: Observation) -> Finding:
    """Report step time, memory and errors of one network in one precision. Informs, and never fails an image."""
    observed = mapping(observation, "observed")
    precision, network = text(observed, "precision"), text(observed, "network")
    step, ratio = number(observed, "step_ms"), number(observed, "time_ratio_to_fp32")
    peak, saved = optional_number(observed, "peak_bytes"), optional_number(observed, "saved_bytes")
    memory = peak if peak is not None else saved
    parts = [f"{network} {precision}: {step:.2f} ms a step"]
    if precision != "fp32":
        speed = 1 / ratio
        parts.append(f"{speed:.2f} times the speed of strict float32")
        parts.append(f"gradient off by {number(observed, 'grad_rel_l2'):.1e}")
    if memory is not None:
        parts.append(f"{memory / 1e6:.1f} MB {'peak' if peak is not None else 'saved for backward'}")
    metric = {"name": "step_time", "value": step, "unit": "ms", "better": "lower"}
    derived = {"speed_up": 1 / ratio, "peak_bytes": peak, "saved_bytes": saved}
    rule = {"type": "informs", "gates": False}
    return timed(Finding(Verdict.PASS, ", ".join(parts), None, (), rule, metric, derived), observation)
