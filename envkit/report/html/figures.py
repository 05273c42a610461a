"""The pictures of a report: each from the record alone, each with its numbers in a table beside it."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.report.html.barchart import parts_chart
from envkit.report.html.linechart import line_chart
from envkit.report.html.machine import (
    collectives_topic,
    compile_topic,
    decoders_topic,
    overlap_topic,
    storage_topic,
    sustained_topic,
)
from envkit.report.html.precision import precision_topic
from envkit.report.html.shapes import short
from envkit.report.html.stripchart import quantile, strip_chart
from envkit.report.html.tables import table
from envkit.report.html.topic import Topic, ratio, remark, sheet_table
from envkit.report.lines import fitted
from envkit.report.markup import Markup
from envkit.report.measured import (
    Cell,
    Loading,
    Spread,
    StepTime,
    Transfer,
    loadings,
    spreads,
    step_time,
    transfers,
)
from envkit.report.reading import Tree
from envkit.report.sheets import PARTS, bound, loading_notes, step_sheet

_WAYS = {"h2d": "Host to device", "d2h": "Device to host"}
_WORKLOADS = {"cpu": "bound by decoding", "io": "bound by waiting for storage"}
# Characters that fit across a picture.
_WIDEST = 30
_FILLS = {"data_wait": "hatched", "h2d": "s2", "compute": "s0"}


def topics(checks: Sequence[Tree]) -> list[Topic]:
    """Every topic, those without data too."""
    return [
        _bandwidth(checks),
        overlap_topic(checks),
        _loading(checks),
        precision_topic(checks),
        _step(checks),
        compile_topic(checks),
        collectives_topic(checks),
        decoders_topic(checks),
        storage_topic(checks),
        sustained_topic(checks),
        _samples(checks),
    ]


def _bandwidth(checks: Sequence[Tree]) -> Topic:
    found = transfers(checks)
    rows = [
        [
            _WAYS[item.way],
            f"{size} MiB",
            ratio(item.pinned.get(size)),
            ratio(item.pageable.get(size)),
            _share(item, size),
        ]
        for item in found
        for size in sorted({*item.pinned, *item.pageable})
    ]
    head = ["Direction", "Size", "Pinned, GB/s", "Pageable, GB/s", "Pinned, share of the limit"]
    return Topic(
        ident="bandwidth",
        title="Bandwidth between host and GPU",
        pictures=tuple(_transfer(item) for item in found),
        numbers=[table("Bandwidth by direction, size and kind of host memory", head, rows, left=2)] if rows else [],
        remark=remark(
            "Page-locked (pinned) memory is copied by the GPU itself; pageable memory goes through a staging buffer."
            " The red mark holds for pinned copies of that size alone; nothing else can fail.",
            noisy=any(item.noisy for item in found),
        ),
        absent="C10 measured no copy between host and GPU in this run.",
    )


def _transfer(item: Transfer) -> Markup:
    sizes = sorted({*item.pinned, *item.pageable})
    limits = [(f"limit of the link {short(item.limit)}", item.limit)] if item.limit else []
    floors = []
    if item.floor is not None and item.floor_at is not None:
        floors = [(f"{item.floor_at} MiB: fails below {short(item.floor)}", item.floor_at, item.floor)]
    named = (("pinned", item.pinned), ("pageable", item.pageable))
    best = "; ".join(f"{name} up to {short(max(points.values()))} GB/s" for name, points in named if points)
    against = f", against a link that carries {short(item.limit)} GB/s" if item.limit else ""
    return line_chart(
        f"bandwidth-{item.way}",
        f"{_WAYS[item.way]}: bandwidth by size",
        f"{_WAYS[item.way]}: {best}{against}.",
        steps=sizes,
        across="size of the copy, MiB",
        up=f"{_WAYS[item.way]}, GB/s",
        series=[(name, points) for name, points in named if points],
        limits=limits,
        floors=floors,
    )


def _share(item: Transfer, size: int) -> str:
    rate = item.pinned.get(size)
    return f"{rate / item.limit:.0%}" if rate is not None and item.limit else "-"


def _loading(checks: Sequence[Tree]) -> Topic:
    found = loadings(checks)
    rows = [
        [bound(item), str(cell.workers), _yes(cell.pinned), _kept(cell), str(cell.prefetch or "-"), f"{cell.rate:.0f}"]
        for item in found
        for cell in sorted(item.cells, key=lambda cell: (cell.workers, cell.pinned, cell.persistent))
    ]
    head = ["Bound by", "Workers", "Pinned", "Workers start", "Prefetch", "Samples per second"]
    return Topic(
        ident="loading",
        title="Data loading",
        pictures=tuple(_loader(index, item) for index, item in enumerate(found)),
        numbers=[table("Samples per second of every setting", head, rows, left=4)] if rows else [],
        remark=remark(
            "The vertical line marks the recommended number of workers: the smallest whose rate is within 10 % of the"
            " best. Where several settings share a point, the fastest is drawn.",
            noisy=any(item.noisy for item in found),
        ),
        absent="C12 measured no loader throughput in this run.",
        notes=[note for item in found for note in loading_notes(item)],
    )


def _loader(index: int, item: Loading) -> Markup:
    series: dict[tuple[bool, str], dict[int, float]] = {}
    alone: dict[bool, float] = {}
    for cell in item.cells:
        if cell.workers:
            points = series.setdefault((cell.pinned, _kept(cell)), {})
            points[cell.workers] = max(cell.rate, points.get(cell.workers, 0.0))
        else:
            alone[cell.pinned] = max(cell.rate, alone.get(cell.pinned, 0.0))
    for pinned, rate in alone.items():
        # Without workers there is nothing to start: that rate opens every line of its kind of memory.
        lines = [points for (memory, _), points in series.items() if memory == pinned]
        for points in lines or [series.setdefault((pinned, "once"), {})]:
            points[0] = rate
    named = {f"workers start {kept}{', pinned' if pinned else ''}": at for (pinned, kept), at in series.items()}
    best = max(item.cells, key=lambda cell: cell.rate)
    chosen = "" if item.recommended is None else f" Recommended: {item.recommended} workers."
    return line_chart(
        f"loading-{index}",
        f"Loader throughput, {_bound(item)}",
        f"Fastest: {best.rate:.0f} samples per second with {best.workers} workers.{chosen}",
        steps=sorted({cell.workers for cell in item.cells}),
        across="num_workers",
        up=f"samples per second, {_bound(item)}",
        series=sorted(named.items()),
        marked=item.recommended,
    )


def _step(checks: Sequence[Tree]) -> Topic:
    found = step_time(checks)
    sheet = None if found is None else step_sheet(found)
    return Topic(
        ident="step",
        title="Where a training step's time goes",
        pictures=() if found is None else (_breakdown(found),),
        numbers=[] if sheet is None else sheet_table(sheet),
        remark="" if found is None else remark(_starved(found), noisy=found.noisy),
        absent="C23 timed no training loop in this run.",
        notes=() if sheet is None else sheet.notes[1:],
        advice=() if sheet is None else sheet.advice,
    )


def _breakdown(found: StepTime) -> Markup:
    parts = [(PARTS[name], value, _FILLS[name]) for name, value in found.parts]
    named = f"A training step, {found.starved:.0%} starved"
    bars: list[tuple[str, list[tuple[str, float, str]]]] = [(named, parts)]
    if found.overlapping or not parts:
        # Laid end to end they would be longer than the step.
        bars = [(named, [("in all", found.full_ms, "s0")]), *((f"Of it {part[0]}", [part]) for part in parts)]
    bars.append(("The same batch again, without the loader", [("in all", found.reused_ms, "s0")]))
    if found.loader_ms is not None:
        bars.append(("The loader alone", [("loading a batch", found.loader_ms, "s1")]))
    return parts_chart("step-time", "A step, with and without its loader", _starved(found), bars, unit="ms")


def _starved(found: StepTime) -> str:
    return (
        f"Starved share {found.starved:.0%}: a step takes {short(found.full_ms)} ms,"
        f" and {short(found.reused_ms)} ms when it need not wait for its loader."
    )


def _samples(checks: Sequence[Tree]) -> Topic:
    found = spreads(checks)
    rows = [_spread(item) for group in found.values() for item in group]
    head = ["Finding", "Samples", "Unit", "Minimum", "Median", "Maximum", "Busy"]
    return Topic(
        ident="samples",
        title="How the samples spread",
        pictures=tuple(_strips(check, group) for check, group in found.items()),
        numbers=[table("Samples of every timed finding", head, rows)] if rows else [],
        remark=remark(
            "Each dot is a sample, the box holds the middle half, the bar is the median; a ring at the edge lies beyond"
            " the scale.",
            noisy=any(item.noisy for group in found.values() for item in group),
        ),
        absent="No finding of this run kept enough samples.",
    )


def _strips(check: str, group: Sequence[Spread]) -> Markup:
    widest = max(group, key=lambda item: quantile(item.values, 0.75) / quantile(item.values, 0.25))
    told = f"{len(group)} findings; {widest.id} spreads most. The table below has the numbers."
    return strip_chart(f"samples-{check.lower()}", f"Samples of {check}", told, group)


def _spread(item: Spread) -> list[str]:
    numbers = (min(item.values), quantile(item.values, 0.5), max(item.values))
    return [item.id, str(len(item.values)), item.unit, *(short(value) for value in numbers), _yes(item.noisy)]


def _bound(item: Loading) -> str:
    return _WORKLOADS.get(item.workload) or fitted(item.workload, _WIDEST)


def _kept(cell: Cell) -> str:
    return "once" if cell.persistent or not cell.workers else "each epoch"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
