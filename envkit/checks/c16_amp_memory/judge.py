"""C16: how much memory does mixed precision keep for the backward pass, compared with float32? It informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.sizes import shown_pair, shown_size

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
    kept, kept_full = (shown_size(value, "MB", 1) for value in (low, full))
    message = f"batch {batch:.0f}: {dtype} keeps {kept} for backward, float32 {kept_full} ({ratio:.2f})"
    if peak_full and peak_low is not None:
        message += f"; peak of a step {shown_pair(peak_low, peak_full, 'MB', 'against')}"
    if not case.flag("largest"):
        case.amend(type="informs")
        if ratio > 1:
            message += "; with few samples the low-precision copies of the weights cost more than is saved"
    elif ratio > case.number("warn_above"):
        advice = "Check whether autocast has an effect here: `envkit verify IMAGE --only C14`."
        return case.warn("AMP_SAVES_LITTLE", message, advice)
    return case.passed(message)
