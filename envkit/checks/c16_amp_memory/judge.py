"""C16: how much memory does mixed precision keep for the backward pass, compared with float32? It informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, optional_number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

_ADVICE = ("Check whether autocast has an effect here: `envkit verify IMAGE --only C14`.",)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge one batch size. Only the largest, at which activations dominate, has a limit."""
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C16.saved")
    batch, dtype = number(observed, "batch"), observed.get("dtype")
    full, low = number(observed, "saved_bytes_fp32"), number(observed, "saved_bytes_amp")
    ratio = low / full
    metric = {"name": "saved_ratio", "value": ratio, "unit": "1", "better": "lower"}
    derived: dict[str, float | None] = {"saved_bytes_fp32": full, "saved_bytes_amp": low, "peak_ratio": None}
    peaks = optional_number(observed, "peak_bytes_fp32"), optional_number(observed, "peak_bytes_amp")
    message = (
        f"batch {batch:.0f}: {dtype} keeps {low / 1e6:.1f} MB for backward, float32 {full / 1e6:.1f} MB ({ratio:.2f})"
    )
    if peaks[0] and peaks[1] is not None:
        derived["peak_ratio"] = peaks[1] / peaks[0]
        message += f"; peak of a step {peaks[1] / 1e6:.0f} against {peaks[0] / 1e6:.0f} MB"
    if not flag(observed, "largest"):
        if ratio > 1:
            message += "; with few samples the low-precision copies of the weights cost more than is saved"
        return Finding(Verdict.PASS, message, None, (), row.record(type="informs"), metric, derived)
    if ratio > row.number("warn_above"):
        return Finding(Verdict.WARN, message, "AMP_SAVES_LITTLE", _ADVICE, row.record(), metric, derived)
    return Finding(Verdict.PASS, message, None, (), row.record(), metric, derived)
