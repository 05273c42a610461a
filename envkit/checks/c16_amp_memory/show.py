"""C16: memory kept for the backward pass, by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, mapping, number, ratio
from envkit.checks.sheet import LOWER, Ratios, Sheet, Shown, cell, fill_of, short, tables
from envkit.ground.text import clean

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Saved:
    """The memory that autocast keeps for backward at one batch size, relative to float32."""

    batch: int
    ratio: float
    dtype: str = ""
    fp32_bytes: float | None = None
    amp_bytes: float | None = None
    peak_ratio: float | None = None  # of a whole step, on a GPU
    ceiling: float | None = None  # above it the check warns


def saved_ratios(checks: Sequence[Tree]) -> list[Saved]:
    """Return C16's batch sizes, the smallest first."""
    saved = []
    for check in checks:
        observed = mapping(check.get("observed"))
        batch, saved_ratio = observed.get("batch"), number(observed.get("saved_ratio"))
        if isinstance(batch, int) and saved_ratio is not None:
            full, low = (number(observed.get(f"saved_bytes_{kind}")) for kind in ("fp32", "amp"))
            peak = ratio(number(observed.get("peak_bytes_amp")), number(observed.get("peak_bytes_fp32")))
            rule = mapping(check.get("rule"))
            ceiling = number(rule.get("warn_above")) if rule.get("type") == "max_ratio" else None
            saved.append(Saved(batch, saved_ratio, clean(observed.get("dtype") or ""), full, low, peak, ceiling))
    return sorted(saved, key=lambda item: item.batch)


def _sheet(saved: Sequence[Saved]) -> Sheet:
    dtype = next((item.dtype for item in saved if item.dtype), "autocast")
    peaked = any(item.peak_ratio is not None for item in saved)
    rows = [
        [
            str(item.batch),
            cell(None if item.fp32_bytes is None else item.fp32_bytes / _MB, ".1f"),
            cell(None if item.amp_bytes is None else item.amp_bytes / _MB, ".1f"),
            cell(item.ratio, ".2f"),
            *([cell(item.peak_ratio, ".2f")] if peaked else []),
        ]
        for item in saved
    ]
    head = ("batch", "fp32, MB", f"{dtype}, MB", "ratio", *(["ratio of the peak"] if peaked else []))
    return Sheet("Memory kept for the backward pass", head, rows)


_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def _figure(saved: Sequence[Saved]) -> Ratios:
    grown = [(f"batch {item.batch}", item.ratio) for item in saved]
    summary = f"Below 1 is less: {', '.join(f'{name} {value:.2f}' for name, value in grown)}."
    floors = [
        (index, f"batch {item.batch} warns above {short(item.ceiling)}", item.ceiling)
        for index, item in enumerate(saved)
        if item.ceiling
    ]
    fills = [fill_of(_SHORT.get(item.dtype, item.dtype)) for item in saved]
    return Ratios(
        "amp-saved",
        "Memory kept for backward by batch size, fp32 = 1",
        summary,
        grown,
        "fp32",
        fills,
        floors,
        better=LOWER,
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the memory kept for the backward pass at each batch size, compared with fp32."""
    saved = saved_ratios(checks)
    return Shown(
        ident="saved",
        title="Memory kept for the backward pass",
        sheets=tables(_sheet(saved)),
        figures=(_figure(saved),) if saved else (),
    )
