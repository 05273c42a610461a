"""What was measured, as small tables with what they say in words: one form for text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.report.machine_sheets import collectives, compiler, decoders, overlaps, storage, sustained_load
from envkit.report.measured import (
    Loading,
    StepTime,
    Transfer,
    loadings,
    precisions,
    product_rates,
    saved_ratios,
    step_time,
    transfers,
)
from envkit.report.reading import Tree
from envkit.report.sheet import Sheet, cell

_MIB, _MB = 1 << 20, 1e6
_WORKLOADS = {"cpu": "decoding", "io": "storage"}
PARTS = {"data_wait": "waiting for data", "h2d": "copying to the device", "compute": "computing"}


def sheets(checks: Sequence[Tree]) -> list[Sheet]:
    """Every table that has a row, in the order of a report."""
    made = (
        _bandwidth(checks),
        overlaps(checks),
        _loading(checks),
        _precision(checks),
        products_sheet(checks),
        saved_sheet(checks),
        _step(checks),
        compiler(checks),
        collectives(checks),
        decoders(checks),
        storage(checks),
        sustained_load(checks),
    )
    return [sheet for sheet in made if sheet.rows]


def _bandwidth(checks: Sequence[Tree]) -> Sheet:
    found = {item.way: item for item in transfers(checks)}
    sizes = sorted({size for item in found.values() for size in (*item.pinned, *item.pageable)})
    limit = max((item.limit for item in found.values() if item.limit), default=None)
    return Sheet(
        title="Page-locked (pinned) against pageable memory, GB/s",
        head=("size", "H2D pinned", "pageable", "ratio", "D2H pinned", "pageable", "ratio"),
        rows=[
            [f"{size} MiB", *(one for way in ("h2d", "d2h") for one in _pair(found.get(way), size))] for size in sizes
        ],
        notes=() if limit is None else (f"The link carries {limit:.1f} GB/s each way.",),
        noisy=any(item.noisy for item in found.values()),
    )


def _pair(item: Transfer | None, size: int) -> list[str]:
    pinned, pageable = (None, None) if item is None else (item.pinned.get(size), item.pageable.get(size))
    gain = pinned / pageable if pinned is not None and pageable else None
    return [cell(pinned, ".1f"), cell(pageable, ".1f"), cell(gain, ".2f")]


def _loading(checks: Sequence[Tree]) -> Sheet:
    """One row per workload and kind of loader, one column per number of workers."""
    found = loadings(checks)
    rates: dict[tuple[str, str, str], dict[int, float]] = {}
    for item in found:
        for one in item.cells:
            kept = "once" if one.persistent or not one.workers else "each epoch"
            # Without workers there is nothing to start: that rate belongs to every kind.
            by_count = rates.setdefault((bound(item), "yes" if one.pinned else "no", kept), {})
            by_count[one.workers] = max(one.rate, by_count.get(one.workers, one.rate))
    counts = sorted({count for by_count in rates.values() for count in by_count})
    named = [f"{count} workers" if index == 0 else str(count) for index, count in enumerate(counts)]
    return Sheet(
        title="Data loading, samples per second",
        head=("bound by", "pinned", "workers start", *named),
        rows=[[*kind, *(cell(by_count.get(count), ".0f") for count in counts)] for kind, by_count in rates.items()],
        left=3,
        notes=tuple(note for item in found for note in loading_notes(item)),
        noisy=any(item.noisy for item in found),
    )


def loading_notes(item: Loading) -> list[str]:
    """What to use on this machine for one workload, and what each option brings."""
    notes = []
    if item.options:
        use = ", ".join(f"{name}={value}" for name, value in item.options)
        rate = "" if item.rate is None else f": {item.rate:.0f} samples/s"
        gain = "" if item.gain is None else f"; workers bring up to {item.gain:.2f} times the rate of none"
        declared = "" if item.declared in (None, item.recommended) else f"; the image declares {item.declared} workers"
        notes.append(f"For this machine, bound by {bound(item)}: {use}{rate}{gain}{declared}.")
    if item.effects:
        brought = ", ".join(f"{name} {factor:.2f}x" for name, factor in item.effects)
        notes.append(f"What each option makes of the rate, bound by {bound(item)}: {brought}.")
    if item.left_out:
        notes.append(f"Settings for which there was no time, bound by {bound(item)}: {item.left_out}.")
    return notes


def bound(item: Loading) -> str:
    """What limits a workload of C12."""
    return _WORKLOADS.get(item.workload, item.workload)


def _precision(checks: Sequence[Tree]) -> Sheet:
    found = precisions(checks)
    memory = "peak MiB" if any(item.peak for item in found) else "saved MiB"
    rows = [
        [
            item.network,
            item.precision,
            cell(item.step_ms, ".3g"),
            cell(1 / item.time_ratio if item.time_ratio else None, ".2f", "x"),
            cell(None if item.memory_bytes is None else item.memory_bytes / _MIB, ".1f"),
            cell(item.loss_error, ".1e"),
            cell(item.gradient_error, ".1e"),
        ]
        for item in found
    ]
    return Sheet(
        title="Mixed precision, one training step",
        head=("network", "precision", "ms", "speed-up", memory, "loss err", "grad err"),
        rows=rows,
        left=2,
        noisy=any(item.noisy for item in found),
    )


def products_sheet(checks: Sequence[Tree]) -> Sheet:
    """C15: the rate of a matrix product in each precision."""
    found = product_rates(checks)
    return Sheet(
        title="Matrix products",
        head=("precision", "TFLOP/s", "times fp32"),
        rows=[[item.precision, cell(item.tflops, ".3g"), cell(item.over_fp32, ".2f", "x")] for item in found],
        noisy=any(item.noisy for item in found),
    )


def saved_sheet(checks: Sequence[Tree]) -> Sheet:
    """C16: what is kept for the backward pass at each batch size."""
    found = saved_ratios(checks)
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


def _step(checks: Sequence[Tree]) -> Sheet:
    found = step_time(checks)
    return Sheet("", (), []) if found is None else step_sheet(found)


def step_sheet(found: StepTime) -> Sheet:
    """Where the time of a training step goes, what that says, and what to do about it."""
    times = [("a training step", found.full_ms), *((f"of it {PARTS[name]}", value) for name, value in found.parts)]
    times.append(("the same batch again, without the loader", found.reused_ms))
    times += [] if found.loader_ms is None else [("the loader alone", found.loader_ms)]
    notes = [f"Starved share {found.starved:.0%}: the part of a step that the loader costs."]
    if found.bottleneck:
        notes.append(f"Bottleneck {found.bottleneck}{': ' if found.told else ''}{found.told}.")
    if found.overlapping:
        notes.append("The host waits for data while the device still computes, so the parts are more than the step.")
    return Sheet(
        title="Where a training step's time goes",
        head=("what", "ms", "of a step"),
        rows=[[name, cell(took, ".3g"), cell(took / found.full_ms, ".0%")] for name, took in times],
        notes=tuple(notes),
        advice=found.advice,
        noisy=found.noisy,
    )
