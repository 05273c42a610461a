"""C16: memory kept for the backward pass, by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, mapping, number, ratio
from envkit.checks.shown import LOWER, Ratios, Sheet, Shown, cell, fill_of, short, tables
from envkit.ground.text import clean

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Saved:
    """What autocast saves for backward at one batch size, relative to float32."""

    batch: int
    ratio: float
    dtype: str = ""
    fp32_bytes: float | None = None
    amp_bytes: float | None = None
    peak_ratio: float | None = None  # of a whole step, on a GPU
    ceiling: float | None = None  # above it the check warns


def saved_ratios(checks: Sequence[Tree]) -> list[Saved]:
    """C16's batch sizes, the smallest first."""
    found = []
    for check in checks:
        observed = mapping(check.get("observed"))
        batch, held = observed.get("batch"), number(observed.get("saved_ratio"))
        if isinstance(batch, int) and held is not None:
            full, low = (number(observed.get(f"saved_bytes_{kind}")) for kind in ("fp32", "amp"))
            peak = ratio(number(observed.get("peak_bytes_amp")), number(observed.get("peak_bytes_fp32")))
            rule = mapping(check.get("rule"))
            ceiling = number(rule.get("warn_above")) if rule.get("type") == "max_ratio" else None
            found.append(Saved(batch, held, clean(observed.get("dtype") or ""), full, low, peak, ceiling))
    return sorted(found, key=lambda item: item.batch)


def _sheet(found: Sequence[Saved]) -> Sheet:
    dtype = next((item.dtype for item in found if item.dtype), "autocast")
    peaked = any(item.peak_ratio is not None for item in found)
    rows = [
        [
            str(item.batch),
            cell(None if item.fp32_bytes is None else item.fp32_bytes / _MB, ".1f"),
            cell(None if item.amp_bytes is None else item.amp_bytes / _MB, ".1f"),
            cell(item.ratio, ".2f"),
            *([cell(item.peak_ratio, ".2f")] if peaked else []),
        ]
        for item in found
    ]
    head = ("batch", "fp32, MB", f"{dtype}, MB", "ratio", *(["ratio of the peak"] if peaked else []))
    return Sheet("Memory kept for the backward pass", head, rows)


_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def _figure(found: Sequence[Saved]) -> Ratios:
    grown = [(f"batch {item.batch}", item.ratio) for item in found]
    told = f"Below 1 is less: {', '.join(f'{name} {value:.2f}' for name, value in grown)}."
    floors = [
        (index, f"batch {item.batch} warns above {short(item.ceiling)}", item.ceiling)
        for index, item in enumerate(found)
        if item.ceiling
    ]
    fills = [fill_of(_SHORT.get(item.dtype, item.dtype)) for item in found]
    return Ratios(
        "amp-saved", "Saved for backward by batch, fp32 = 1", told, grown, "fp32", fills, floors, better=LOWER
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show what is kept for the backward pass at each batch size, against fp32."""
    found = saved_ratios(checks)
    return Shown(
        ident="saved",
        title="Memory kept for the backward pass",
        sheets=tables(_sheet(found)),
        figures=(_figure(found),) if found else (),
    )
