"""C16: how much memory does mixed precision keep for the backward pass, compared with float32? It informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge one batch size. Only the largest, at which activations dominate, has a limit."""
    case.use("C16.saved")
    batch, dtype = case.value("batch"), case.observed.get("dtype")
    full, low = case.value("saved_bytes_fp32"), case.value("saved_bytes_amp")
    ratio = low / full
    case.metric("saved_ratio", ratio, "1", "lower")
    peak_full, peak_low = case.optional("peak_bytes_fp32"), case.optional("peak_bytes_amp")
    peak_ratio = peak_low / peak_full if peak_full and peak_low is not None else None
    case.derive(saved_bytes_fp32=full, saved_bytes_amp=low, peak_ratio=peak_ratio)
    message = (
        f"batch {batch:.0f}: {dtype} keeps {low / 1e6:.1f} MB for backward, float32 {full / 1e6:.1f} MB ({ratio:.2f})"
    )
    if peak_full and peak_low is not None:
        message += f"; peak of a step {peak_low / 1e6:.0f} against {peak_full / 1e6:.0f} MB"
    if not case.flag("largest"):
        case.amend(type="informs")
        if ratio > 1:
            message += "; with few samples the low-precision copies of the weights cost more than is saved"
    elif ratio > case.number("warn_above"):
        advice = "Check whether autocast has an effect here: `envkit verify IMAGE --only C14`."
        return case.warn("AMP_SAVES_LITTLE", message, advice)
    return case.passed(message)
