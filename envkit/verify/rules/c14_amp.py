"""C14: autocast lowers what it should, the scaler guards the weights, errors stay small; speed informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.verify import thresholds
from envkit.verify.model import Finding, Verdict
from envkit.verify.rules.c14_errors import judge_bench, judge_error
from envkit.verify.rules.common import flag, mapping, number, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.verify.model import Env, Observation, Spec

# What autocast gives, "low" standing for the dtype asked for. CPU autocast leaves softmax and layer_norm low (measured
# with torch 2.13); CUDA lists both as float32 (PyTorch's autocast op reference).
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
        return judge_error(observed)
    return judge_bench(observation)


def _choice(observed: Mapping[str, Any]) -> Finding:
    recommended = observed.get("recommended")
    rule = {"type": "informs", "gates": False}
    if observed.get("bf16_claimed") is True and not flag(observed, "bf16_native"):
        message = f"torch says bfloat16 works here, by emulation slower than float32; use {recommended or 'float32'}"
        advice = (
            "Ask torch.cuda.is_bf16_supported(including_emulation=False).",
            f"Train with torch.autocast('cuda', dtype=torch.{recommended or 'float32'}).",
        )
        return Finding(Verdict.WARN, message, "BF16_EMULATED", advice, rule)
    return Finding(Verdict.PASS, f"mixed precision here means {recommended or 'nothing: float32 only'}", None, (), rule)


def _dtypes(observed: Mapping[str, Any], subject: str) -> Finding:
    requested, table = text(observed, "requested"), mapping(observed, "table")
    expected = DTYPE_TABLE["gpu" if subject.startswith("gpu") else "cpu"]
    wanted = {name: requested if kind == "low" else kind for name, kind in expected.items()}
    wrong = {name: text(table, name) for name, dtype in wanted.items() if text(table, name) != dtype}
    rule = {**_EXACT, "expected": wanted}
    if "mm" in wrong:
        message = f"autocast to {requested} lowers nothing: mm gives {wrong['mm']}"
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
        f"the scale went from {before:g} to {after:g}, not to its half": after == before / 2,
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
