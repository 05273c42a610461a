"""C14's numbers: loss and gradient error against float32, and what mixed precision brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.verify import thresholds
from envkit.verify.model import Finding, Verdict
from envkit.verify.rules.common import mapping, number, optional_number, text, timed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.verify.model import Observation

_ADVICE = (
    "Compare with `envkit verify IMAGE --only C05,C06`: a wrong product shows there first.",
    "Train in bfloat16 where the GPU has it, or in float32, until the cause is found.",
)


def judge_error(observed: Mapping[str, Any]) -> Finding:
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
        "loss": (rows.row("C14.loss"), "fail_above"),
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
            return Finding(Verdict.FAIL, message, "NONFINITE_RESULT", _ADVICE, row.record())
        if value > row.number(key):
            message = f"{subject}: {name} {value:.1e}, above {row.number(key):.1e}"
            return Finding(Verdict.FAIL, message, "AMP_ERROR", _ADVICE, row.record(), metric, measured)
    loss = measured["loss"]
    message = f"{subject}: loss off by {loss:.1e}, gradient by {gradient:.1e} of float32"
    return Finding(Verdict.PASS, message, None, (), rows.row("C14.gradient").record(), metric, measured)


def judge_bench(observation: Observation) -> Finding:
    """State step time, memory and errors of one network in one precision. Informs, and never fails an image."""
    observed = mapping(observation, "observed")
    precision, network = text(observed, "precision"), text(observed, "network")
    step, ratio = number(observed, "step_ms"), number(observed, "time_ratio_to_fp32")
    peak, saved = optional_number(observed, "peak_bytes"), optional_number(observed, "saved_bytes")
    memory = peak if peak is not None else saved
    parts = [f"{network} {precision}: {step:.2f} ms a step"]
    if precision != "fp32":
        speed = 1 / ratio
        parts.append(f"{speed:.2f} times as fast as strict float32")
        parts.append(f"gradient off by {number(observed, 'grad_rel_l2'):.1e}")
    if memory is not None:
        parts.append(f"{memory / 1e6:.1f} MB {'peak' if peak is not None else 'saved for backward'}")
    metric = {"name": "step_time", "value": step, "unit": "ms", "better": "lower"}
    derived = {"speed_up": 1 / ratio, "peak_bytes": peak, "saved_bytes": saved}
    rule = {"type": "informs", "gates": False}
    return timed(Finding(Verdict.PASS, ", ".join(parts), None, (), rule, metric, derived), observation)
