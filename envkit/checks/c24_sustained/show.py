"""C24: rate, clock, temperature and power over the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from envkit.checks.reading import Tree, mapping, number, sequence
from envkit.checks.sheet import HIGHER, Figure, Lines, Sheet, Shown, cell, short, tables
from envkit.ground.text import clean

# Points of a line over time.
_POINTS = 12


@dataclass(frozen=True, slots=True)
class Sustained:
    """The rate at the start and the end of the load in TFLOP/s, and what the device reported meanwhile."""

    seconds: float
    dtype: str
    first: float | None
    last: float | None
    clocks: tuple[tuple[float, float], ...]  # (s, MHz)
    boost: float | None  # MHz
    celsius: float | None  # maximum
    watts: float | None  # maximum
    events: tuple[str, ...]
    errors: tuple[tuple[str, int | None], ...]  # None: not reported


def sustained(checks: Sequence[Tree]) -> Sustained | None:
    """Return C24's load and telemetry, or None if there was no load."""
    parts = {str(check["id"]): mapping(check.get("observed")) for check in checks}
    load, telemetry = mapping(parts.get("C24.load")), mapping(parts.get("C24.telemetry"))
    seconds = number(load.get("seconds"))
    if seconds is None:
        return None
    rows = [mapping(row) for row in sequence(telemetry.get("rows"))]
    timed = ((number(row.get("at_s")), number(row.get("sm_mhz"))) for row in rows)
    xids = telemetry.get("xids")
    return Sustained(
        seconds=seconds,
        dtype=clean(load.get("dtype") or ""),
        first=number(load.get("tflops_first")),
        last=number(load.get("tflops_last")),
        clocks=tuple((at, clock) for at, clock in timed if at is not None and clock is not None),
        boost=number(telemetry.get("max_sm_mhz")),
        celsius=_most(rows, "celsius"),
        watts=_most(rows, "watts"),
        events=tuple(sorted({clean(event) for row in rows for event in sequence(row.get("events"))})),
        errors=(
            ("Xid messages", len(xids) if isinstance(xids, list) else None),
            ("uncorrectable memory errors", _count(telemetry.get("uncorrected_ecc"))),
            ("PCIe replays", _count(telemetry.get("pcie_replays"))),
        ),
    )


def _most(rows: Sequence[Tree], key: str) -> float | None:
    return max((value for row in rows if (value := number(row.get(key))) is not None), default=None)


def _count(value: object) -> int | None:
    count = number(value)
    return None if count is None else int(count)


def _figures(load: Sustained) -> tuple[Figure, ...]:
    if not load.clocks:
        return ()
    every = max(1, round(max(at for at, _ in load.clocks) / _POINTS))
    by_step: dict[int, list[float]] = {}
    for at, clock in load.clocks:
        by_step.setdefault(int(at // every) * every, []).append(clock)
    points = {step: median(clocks) for step, clocks in sorted(by_step.items())}
    summary = f"Between {short(min(points.values()))} and {short(max(points.values()))} MHz"
    against = f", of {short(load.boost)} MHz at most." if load.boost else "."
    drawn = Lines(
        ident="sustained-clock",
        title="Clock under load",
        summary=summary + against,
        steps=list(points),
        x_label="seconds",
        y_label="MHz",
        series=[("clock of the multiprocessors", points)],
        limits=[(f"boost clock {short(load.boost)}", load.boost)] if load.boost else [],
        better=HIGHER,
    )
    return (drawn,)


def _sheet(load: Sustained) -> Sheet:
    clocks = sorted(clock for _, clock in load.clocks)
    middle = clocks[len(clocks) // 2] if clocks else None
    row = [
        f"{load.seconds:.0f} s",
        cell(load.first, ".4g"),
        cell(load.last, ".4g"),
        cell(middle, ".0f"),
        cell(load.boost, ".0f"),
        cell(load.celsius, ".0f"),
        cell(load.watts, ".0f"),
    ]
    errors = ", ".join(f"{'no' if count == 0 else count} {what}" for what, count in load.errors if count is not None)
    notes = [f"During the load: {errors}."] if errors else []
    notes += [f"The clock was limited by {', '.join(load.events)}."] if load.events else []
    return Sheet(
        title=f"Sustained load{', ' if load.dtype else ''}{load.dtype}",
        head=("load", "TFLOP/s at start", "at end", "clock, MHz", "boost", "Celsius", "watts"),
        rows=[row],
        notes=tuple(notes),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show rate, clock, temperature and power over the load, and what the device reported meanwhile."""
    load = sustained(checks)
    return Shown(
        ident="sustained",
        title="Sustained load",
        sheets=() if load is None else tables(_sheet(load)),
        figures=() if load is None else _figures(load),
        remark="The same matrix product repeated for a minute: throughput, clock, temperature and reported events.",
    )
