"""The tables of a machine and its libraries: overlap, compiler, processes, decoders, storage, sustained load."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.report.machine import accesses, compiled, decodings, overlap, process_groups, sustained
from envkit.report.reading import Tree
from envkit.report.sheet import Sheet, cell

_EMPTY = Sheet("", (), [])
_SHARES = {
    "pinned": "pinned memory, a stream of its own",
    "same_stream": "pinned memory, one stream",
    "pageable": "pageable memory, a stream of its own",
}


def overlaps(checks: Sequence[Tree]) -> Sheet:
    """C11: how much of a copy hides behind kernels."""
    found = overlap(checks)
    if found is None:
        return _EMPTY
    note = (
        f"The copy takes {found.copy_ms:.3g} ms alone, the kernels {found.kernels_ms:.3g} ms, both together"
        f" {found.both_ms:.3g} ms."
    )
    return Sheet(
        title="A copy beside kernels",
        head=("copy from", "hidden, share of the shorter"),
        # Adding nothing makes a rounded -0 a 0.
        rows=[[_SHARES[name], cell(round(share, 2) + 0.0, ".0%")] for name, share in found.shares],
        notes=(note,),
        noisy=found.noisy,
    )


def compiler(checks: Sequence[Tree]) -> Sheet:
    """C18: what compiling costs and brings."""
    found = compiled(checks)
    if found is None:
        return _EMPTY
    row = [
        cell(found.eager_ms, ".3g"),
        cell(found.compiled_ms, ".3g"),
        cell(found.speed_up, ".2f", "x"),
        cell(found.first_s, ".1f"),
        cell(found.kernels, ".0f"),
    ]
    return Sheet(
        title="torch.compile, one small function",
        head=("eager, ms", "compiled, ms", "speed-up", "first call, s", "kernel files"),
        rows=[row],
        left=0,
    )


def collectives(checks: Sequence[Tree]) -> Sheet:
    """C20: whether processes add up what they should, and how fast GPUs do it."""
    found = process_groups(checks)
    timed = any(item.bus is not None for item in found)
    rows = [
        [
            item.backend,
            str(item.ranks),
            cell(item.wrong, ".0f"),
            cell(item.difference, ".1e"),
            *([cell(item.algorithm, ".1f"), cell(item.bus, ".1f")] if timed else []),
        ]
        for item in found
    ]
    rates = ("all-reduce GB/s", "bus GB/s") if timed else ()
    return Sheet(
        title="Collectives",
        head=("backend", "processes", "wrong sums", "DDP gradient err", *rates),
        rows=rows,
        noisy=any(item.noisy for item in found),
    )


def decoders(checks: Sequence[Tree]) -> Sheet:
    """C21: pictures per second of each decoder, one column per size."""
    found = decodings(checks)
    names = list(dict.fromkeys(name for item in found for name, _ in item.rates))
    rates = [dict(item.rates) for item in found]
    rows = [
        [
            name,
            *(cell(by_name.get(name), ".0f") for by_name in rates),
            cell(max((item.differences[name] for item in found if name in item.differences), default=None), ".0f"),
        ]
        for name in names
    ]
    shares = ", ".join(
        f"{item.decode_share:.0%} at {item.width:.0f} x {item.height:.0f}"
        for item in found
        if item.decode_share is not None
    )
    notes = [f"Decoding with Pillow is {shares} of preparing a picture; the rest is scaling and normalising it."]
    absent = dict.fromkeys(name for item in found for name in item.absent)
    missing = [f"Not installed: {', '.join(absent)}."] if absent else []
    return Sheet(
        title="JPEG decoders, pictures per second on one thread",
        head=("decoder", *(f"{item.width:.0f} x {item.height:.0f}" for item in found), "levels from Pillow"),
        rows=rows,
        notes=(*(notes if shares else []), *missing),
        advice=tuple(f"{item.width:.0f} x {item.height:.0f}: {line}" for item in found for line in item.advice),
        noisy=any(item.noisy for item in found),
    )


def storage(checks: Sequence[Tree]) -> Sheet:
    """C22: what storage gives past the page cache."""
    found = accesses(checks)
    rows = [[item.what, item.filesystem, f"{cell(item.rate, item.form)} {item.unit}"] for item in found]
    cached = [item.what for item in found if item.cached]
    note = f"The page cache may have answered: {', '.join(cached)}."
    return Sheet(
        title="Storage, past the page cache",
        head=("access", "file system", "rate"),
        rows=rows,
        left=2,
        notes=(note,) if cached else (),
    )


def sustained_load(checks: Sequence[Tree]) -> Sheet:
    """C24: rate, clock, heat and power over the load."""
    found = sustained(checks)
    if found is None:
        return _EMPTY
    clocks = sorted(clock for _, clock in found.clocks)
    middle = clocks[len(clocks) // 2] if clocks else None
    row = [
        f"{found.seconds:.0f} s",
        cell(found.first, ".4g"),
        cell(found.last, ".4g"),
        cell(middle, ".0f"),
        cell(found.boost, ".0f"),
        cell(found.celsius, ".0f"),
        cell(found.watts, ".0f"),
    ]
    told = ", ".join(f"{'no' if count == 0 else count} {what}" for what, count in found.errors if count is not None)
    notes = [f"Meanwhile: {told}."] if told else []
    notes += [f"The clock was held down by {', '.join(found.events)}."] if found.events else []
    return Sheet(
        title=f"Sustained load{', ' if found.dtype else ''}{found.dtype}",
        head=("load", "TFLOP/s at first", "at last", "clock, MHz", "boost", "Celsius", "watts"),
        rows=[row],
        notes=tuple(notes),
    )
