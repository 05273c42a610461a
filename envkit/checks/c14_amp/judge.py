"""C14: does autocast lower what it should, does the scaler protect the weights, are errors small? Speed informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.observed import text, timed
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

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
_ERROR_ADVICE = (
    "Compare with `envkit verify IMAGE --only C05,C06`: a wrong product shows there first.",
    "Train in bfloat16 where the GPU has it, or in float32, until the cause is found.",
)


def judge(case: Case) -> Finding:
    """Judge by the second part of the id: dtype_choice, dtypes, grad_scaler, underflow, error or bench."""
    kinds = {
        "dtype_choice": _choice,
        "dtypes": _dtypes,
        "grad_scaler": _scaler,
        "underflow": _underflow,
        "error": _error,
    }
    return kinds.get(case.kind, _bench)(case)


def _choice(case: Case) -> Finding:
    case.rule("informs", gates=False)
    recommended = case.observed.get("recommended")
    if case.observed.get("bf16_claimed") is True and not case.flag("bf16_native"):
        message = f"torch reports bfloat16, but emulates it, slower than float32; use {recommended or 'float32'}"
        return case.warn(
            "BF16_EMULATED",
            message,
            "Ask torch.cuda.is_bf16_supported(including_emulation=False).",
            f"Train with torch.autocast('cuda', dtype=torch.{recommended or 'float32'}).",
        )
    return case.passed(f"recommended for mixed precision: {recommended or 'float32 only'}")


def _dtypes(case: Case) -> Finding:
    requested, table = case.text("requested"), case.mapping("table")
    device = "gpu" if case.subject.startswith("gpu") else "cpu"
    wanted = {name: requested if kind == "low" else kind for name, kind in DTYPE_TABLE[device].items()}
    wrong = {name: text(table, name) for name, dtype in wanted.items() if text(table, name) != dtype}
    case.rule("equals", gates=True, unit="1", expected=wanted)
    if "mm" in wrong:
        message = f"autocast to {requested} has no effect: mm gives {wrong['mm']}"
        name = "cuda" if device == "gpu" else "cpu"
        advice = f"Name the device the tensors are on: torch.autocast({name!r}, dtype=torch.{requested})."
        return case.fail("AMP_INERT", message, advice)
    if wrong:
        parts = ", ".join(f"{name} gives {dtype}, not {wanted[name]}" for name, dtype in sorted(wrong.items()))
        advice = "Compare with PyTorch's autocast op reference for this version of torch."
        return case.fail("AMP_DTYPES", f"autocast to {requested}: {parts}", advice)
    return case.passed(f"autocast gives {requested} for mm, linear and conv2d")


def _scaler(case: Case) -> Finding:
    case.rule("equals", gates=True, unit="1")
    before, after = case.value("scale_before"), case.value("scale_after_inf")
    properties = {
        "an infinite gradient reached the weights": case.flag("weights_equal_after_inf"),
        # The default backoff_factor of GradScaler is 0.5.
        f"the scale went from {before:g} to {after:g}, not to half": after == before / 2,
        "the unscaled gradient is not exact": case.flag("unscaled_gradient_exact"),
        "a finite gradient moved no weight": case.flag("weights_moved_after_finite"),
        "a finite step changed the scale": case.value("scale_after_finite") == after,
    }
    broken = [what for what, holds in properties.items() if not holds]
    if broken:
        advice = "Train in bfloat16 where the GPU has it, or with another release of torch: `envkit matrix list`."
        return case.fail("GRAD_SCALER", "GradScaler: " + "; ".join(broken), advice)
    return case.passed(f"an infinite step is skipped, scale {before:g} to {after:g}")


def _underflow(case: Case) -> Finding:
    case.use("C14.underflow")
    value = case.value("value")
    errors = {name: abs(case.value(name) - value) / value for name in ("fp16_scaled", "bf16")}
    lost = [name for name, error in errors.items() if error > case.number(name)]
    case.metric("relative_error", max(errors.values()), "1", "lower")
    case.derive(**errors)
    if lost:
        message = f"{value:g} does not survive: " + ", ".join(f"{name} off by {errors[name]:.1e}" for name in lost)
        advice = "Look for flush-to-zero settings: torch.set_flush_denormal, or a compiler's fast-math flag."
        return case.fail("UNDERFLOW", message, advice)
    return case.passed(f"{value:g} survives in float16 with scaling and in bfloat16")


def _error(case: Case) -> Finding:
    """Judge the first step's loss, the gradient's direction and length, and that the loss falls."""
    precision, network = case.text("precision"), case.text("network")
    # The tables of older records have one number for both precisions, taken from a CPU.
    of_loss = precision if precision in thresholds.load().row("C14.loss").values else "fail_above"
    limits = {
        "loss": ("loss_rel_err", "C14.loss", of_loss),
        "gradient": ("grad_rel_l2", "C14.gradient", precision),
        "direction": ("grad_one_minus_cos", "C14.direction", "fail_above"),
        "progress": ("loss_ratio_low", "C14.progress", "fail_above"),
        "float32's progress": ("loss_ratio_fp32", "C14.progress", "fail_above"),
    }
    measured = {name: case.optional(field) for name, (field, _, _) in limits.items()}
    subject, gradient = f"{network} in {precision}", measured["gradient"]
    for name, (_, row, key) in limits.items():
        value = measured[name]
        case.use(row)
        if value is None:
            return case.fail("NONFINITE_RESULT", f"{subject}: the {name} is not finite", *_ERROR_ADVICE)
        if value > case.number(key):
            case.metric("gradient_relative_l2", gradient, "1", "lower")
            case.derive(**measured)
            message = f"{subject}: {name} {value:.1e}, above {case.number(key):.1e}"
            return case.fail("AMP_ERROR", message, *_ERROR_ADVICE)
    case.use("C14.gradient")
    case.metric("gradient_relative_l2", gradient, "1", "lower")
    case.derive(**measured)
    return case.passed(f"{subject}: loss off by {measured['loss']:.1e}, gradient by {gradient:.1e} of float32")


def _bench(case: Case) -> Finding:
    """Report step time, memory and errors of one network in one precision. Informs, and never fails an image."""
    case.rule("informs", gates=False)
    precision, network = case.text("precision"), case.text("network")
    step, speed = case.value("step_ms"), 1 / case.value("time_ratio_to_fp32")
    peak, saved = case.optional("peak_bytes"), case.optional("saved_bytes")
    memory = peak if peak is not None else saved
    parts = [f"{network} {precision}: {step:.2f} ms a step"]
    if precision != "fp32":
        parts.append(f"{speed:.2f} times the speed of strict float32")
        parts.append(f"gradient off by {case.value('grad_rel_l2'):.1e}")
    if memory is not None:
        parts.append(f"{shown_size(memory, 'MB', 1)} {'peak' if peak is not None else 'saved for backward'}")
    case.metric("step_time", step, "ms", "lower")
    case.derive(speed_up=speed, peak_bytes=peak, saved_bytes=saved)
    return timed(case.passed(", ".join(parts)), case.observation)
