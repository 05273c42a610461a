"""The topics of a machine and its libraries: overlap, compiler, processes, decoders, storage, sustained load."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from envkit.report import machine_sheets as sheets
from envkit.report.html.barchart import value_chart
from envkit.report.html.linechart import line_chart
from envkit.report.html.shapes import short
from envkit.report.html.topic import Topic, remark, sheet_table
from envkit.report.lines import fitted
from envkit.report.machine import Decoding, Sustained, compiled, decodings, overlap, sustained
from envkit.report.markup import Markup
from envkit.report.reading import Tree
from envkit.report.sheet import Sheet

_TITLES = {
    "overlap": "A copy beside kernels",
    "compile": "torch.compile",
    "collectives": "Collectives",
    "decoders": "JPEG decoders",
    "storage": "Storage",
    "sustained": "Sustained load",
}
# Characters that fit beside a bar.
_ROW_NAME = 15
# Points of a line over time.
_POINTS = 12


def overlap_topic(checks: Sequence[Tree]) -> Topic:
    """C11: a copy and kernels, alone and together."""
    found = overlap(checks)
    pictures: tuple[Markup, ...] = ()
    if found is not None:
        rows = [("copy", found.copy_ms), ("kernels", found.kernels_ms), ("on two streams", found.both_ms)]
        rows += [] if found.one_stream_ms is None else [("on one stream", found.one_stream_ms)]
        told = f"{', '.join(f'{name} {short(took)} ms' for name, took in rows)}."
        pictures = (value_chart("overlap-times", "A copy and kernels, alone and together", told, rows, unit="ms"),)
    return _topic(
        "overlap",
        sheets.overlaps(checks),
        "A copy from pinned memory on a stream of its own takes no time of its own where the GPU does both at once.",
        "C11 timed no copy beside kernels in this run.",
        pictures,
    )


def compile_topic(checks: Sequence[Tree]) -> Topic:
    """C18: the first call, and later ones against eager ones."""
    found = compiled(checks)
    pictures: tuple[Markup, ...] = ()
    if found is not None and found.eager_ms is not None and found.compiled_ms is not None:
        rows = [("eager", found.eager_ms), ("compiled", found.compiled_ms)]
        told = f"Eager {short(found.eager_ms)} ms, compiled {short(found.compiled_ms)} ms a call."
        pictures = (value_chart("compile-times", "A call, eager and compiled", told, rows, unit="ms"),)
    return _topic(
        "compile",
        sheets.compiler(checks),
        "One small function, which says whether the compiler works; what a model gains is another matter.",
        "C18 compiled nothing in this run.",
        pictures,
    )


def collectives_topic(checks: Sequence[Tree]) -> Topic:
    """C20: sums, gradients and bandwidth of each backend."""
    text = "Bus bandwidth is what each link carries, 2 (n - 1) / n of the rate of the result; it needs two GPUs."
    absent = "C20 joined no processes in this run."
    return _topic("collectives", sheets.collectives(checks), text, absent)


def decoders_topic(checks: Sequence[Tree]) -> Topic:
    """C21: pictures per second of each decoder, a picture for each size."""
    pictures = tuple(_decoder(index, item) for index, item in enumerate(decodings(checks)))
    text = "One thread each; beside them stands by how many of 256 levels a pixel is from Pillow's at most."
    absent = "C21 timed no JPEG decoder in this run."
    return _topic("decoders", sheets.decoders(checks), text, absent, pictures)


def _decoder(index: int, item: Decoding) -> Markup:
    size = f"{item.width:.0f} x {item.height:.0f}"
    rows = [(fitted(name, _ROW_NAME), rate) for name, rate in item.rates]
    told = f"{', '.join(f'{name} {short(rate)}' for name, rate in rows)} pictures per second."
    return value_chart(f"decoders-{index}", f"Decoding JPEG, {size}", told, rows, unit="pictures per second")


def storage_topic(checks: Sequence[Tree]) -> Topic:
    """C22: the rate of each way to use storage."""
    text = "The file system of the image and of the scratch folder; a mounted data set lies elsewhere."
    return _topic("storage", sheets.storage(checks), text, "C22 measured no storage in this run.")


def sustained_topic(checks: Sequence[Tree]) -> Topic:
    """C24: the clock over the load."""
    found = sustained(checks)
    pictures = () if found is None else _clock(found)
    text = "Equal matrix products for a minute: rate, clock and heat, and what the device reported meanwhile."
    absent = "C24 loaded no GPU in this run; it belongs to the tier deep."
    return _topic("sustained", sheets.sustained_load(checks), text, absent, pictures)


def _clock(found: Sustained) -> tuple[Markup, ...]:
    if not found.clocks:
        return ()
    every = max(1, round(max(at for at, _ in found.clocks) / _POINTS))
    by_step: dict[int, list[float]] = {}
    for at, clock in found.clocks:
        by_step.setdefault(int(at // every) * every, []).append(clock)
    points = {step: median(clocks) for step, clocks in sorted(by_step.items())}
    told = f"Between {short(min(points.values()))} and {short(max(points.values()))} MHz"
    against = f", of {short(found.boost)} MHz at most." if found.boost else "."
    drawn = line_chart(
        "sustained-clock",
        "Clock under load",
        told + against,
        steps=list(points),
        across="seconds",
        up="MHz",
        series=[("clock of the multiprocessors", points)],
        limits=[(f"boost clock {short(found.boost)}", found.boost)] if found.boost else [],
    )
    return (drawn,)


def _topic(ident: str, sheet: Sheet, text: str, absent: str, pictures: tuple[Markup, ...] = ()) -> Topic:
    return Topic(
        ident=ident,
        title=_TITLES[ident],
        pictures=pictures,
        numbers=sheet_table(sheet),
        remark=remark(text, noisy=sheet.noisy),
        absent=absent,
        notes=sheet.notes,
        advice=sheet.advice,
    )
