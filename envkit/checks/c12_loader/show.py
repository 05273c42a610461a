"""C12: samples per second of the loader, by number of workers and other options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, is_number, mapping, number, sequence
from envkit.checks.sheet import HIGHER, Lines, Sheet, Shown, Tile, cell, tables
from envkit.ground.text import clean, fitted

_EFFECTS = ("prefetch_factor", "persistent_workers", "pin_memory")

_WORKLOADS = {
    "cpu": "bound by decoding",
    "io": "bound by waiting for storage",
    "data": "from your files",
    "dataset": "from your Dataset",
}

# Workloads from the user's own data.
_OWN = ("data", "dataset")

# Characters that fit across a figure.
_WIDEST = 30

_LIMITS = {"cpu": "decoding", "io": "storage", "data": "your files", "dataset": "your Dataset"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the loader and its samples per second."""

    workers: int
    pinned: bool
    persistent: bool
    prefetch: int | None
    rate: float


@dataclass(frozen=True, slots=True)
class Loading:
    """The loader's sweep over one workload. `options` are the recommended settings, `effects` the gain of each."""

    workload: str
    cells: tuple[Cell, ...]
    recommended: int | None  # num_workers
    noisy: bool
    options: tuple[tuple[str, int], ...] = ()  # switches only if they are on
    rate: float | None = None  # samples per second with them
    gain: float | None = None  # the best rate with workers over the rate without
    effects: tuple[tuple[str, float], ...] = ()  # the rate with the option over the rate without
    declared: int | None = None  # num_workers that the image declares
    left_out: int = 0  # settings that the time limit left out
    unmeasured: tuple[str, ...] = ()  # values of options that only those settings have

    @property
    def gained(self) -> str:
        """The recommended setting over num_workers=0, or what workers gain where it is that; empty if unknown."""
        if self.gain is None:
            return ""
        if not self.recommended:
            return f"workers reach {self.gain:.2f}x of that"
        return f"up to {self.gain:.2f}x the throughput of num_workers=0" if self.gain > 1 else ""


def loadings(checks: Sequence[Tree]) -> list[Loading]:
    """Return C12's throughput, one sweep per workload: the one with the most settings."""
    sweeps: dict[str, Loading] = {}
    for check in checks:
        observed = mapping(check.get("observed"))
        cells = tuple(
            setting for item in sequence(observed.get("cells")) if (setting := _cell(mapping(item))) is not None
        )
        if cells:
            sweep = _sweep(check, observed, cells)
            sweeps[sweep.workload] = max(
                sweeps.get(sweep.workload, sweep), sweep, key=lambda loading: len(loading.cells)
            )
    return list(sweeps.values())


def _sweep(check: Tree, observed: Tree, cells: tuple[Cell, ...]) -> Loading:
    chosen, declared = mapping(observed.get("recommended")), number(observed.get("declared_num_workers"))
    workers = number(chosen.get("num_workers"))
    named = ((name, chosen.get(name)) for name in ("num_workers", *_EFFECTS))
    effects = ((name, number(mapping(observed.get("effects")).get(name))) for name in _EFFECTS)
    return Loading(
        workload=clean(observed.get("workload") or str(check["id"]).rpartition(".")[2]),
        cells=cells,
        recommended=None if workers is None else int(workers),
        noisy=is_noisy(check),
        options=tuple((name, value) for name, value in named if isinstance(value, int) and value is not False),
        rate=number(observed.get("samples_per_s")),
        gain=number(observed.get("best_workers_over_none")),
        effects=tuple((name, value) for name, value in effects if value is not None),
        declared=None if declared is None else int(declared),
        left_out=len(sequence(observed.get("cells_left_out"))),
        unmeasured=_unmeasured(observed),
    )


def _unmeasured(observed: Tree) -> tuple[str, ...]:
    """Return the values of options that only settings left out have: `prefetch_factor=4`."""
    cells, left = ([mapping(item) for item in sequence(observed.get(key))] for key in ("cells", "cells_left_out"))
    return tuple(
        f"{name}={clean(value)}"
        for name in ("num_workers", *_EFFECTS)
        for value in dict.fromkeys(str(item.get(name)) for item in left)
        if value not in {str(item.get(name)) for item in cells}
    )


def _cell(item: Tree) -> Cell | None:
    workers, rate, prefetch = item.get("num_workers"), item.get("samples_per_s"), item.get("prefetch_factor")
    if not isinstance(workers, int) or not is_number(rate):
        return None
    prefetch = prefetch if isinstance(prefetch, int) else None
    return Cell(workers, bool(item.get("pin_memory")), bool(item.get("persistent_workers")), prefetch, rate)


def _figure(index: int, item: Loading) -> Lines:
    series: dict[tuple[bool, str], dict[int, float]] = {}
    without_workers: dict[bool, float] = {}
    for setting in item.cells:
        if setting.workers:
            points = series.setdefault((setting.pinned, _starts(setting)), {})
            points[setting.workers] = max(setting.rate, points.get(setting.workers, 0.0))
        else:
            without_workers[setting.pinned] = max(setting.rate, without_workers.get(setting.pinned, 0.0))
    for pinned, rate in without_workers.items():
        # Without workers there is nothing to start, so every line of this kind of memory begins with that rate.
        lines = [points for (memory, _), points in series.items() if memory == pinned]
        for points in lines or [series.setdefault((pinned, "once"), {})]:
            points[0] = rate
    named = {f"workers start {starts}{', pinned' if pinned else ''}": at for (pinned, starts), at in series.items()}
    best = max(item.cells, key=lambda candidate: candidate.rate)
    chosen = "" if item.recommended is None else f" Recommended: {item.recommended} workers."
    return Lines(
        ident=f"loading-{index}",
        title=f"Loader throughput, {_workload(item)}",
        summary=f"Fastest: {best.rate:.0f} samples per second with {best.workers} workers.{chosen}",
        steps=sorted({candidate.workers for candidate in item.cells}),
        x_label="num_workers",
        y_label=f"samples per second, {_workload(item)}",
        series=sorted(named.items()),
        marked=item.recommended,
        better=HIGHER,
    )


def _tile(item: Loading) -> Tile:
    workers = item.recommended or 0
    rate = "" if item.rate is None else f"{item.rate:.0f} samples/s, "
    gain = f", {item.gain:.1f}x num_workers=0" if item.gain is not None and item.gain > 1 and workers else ""
    return Tile("Best loader setting", f"{workers} worker{'s' * (workers != 1)}", f"{rate}{_by(item)}{gain}")


def _workload(item: Loading) -> str:
    return _WORKLOADS.get(item.workload) or fitted(item.workload, _WIDEST)


def _starts(setting: Cell) -> str:
    return "once" if setting.persistent or not setting.workers else "each epoch"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _sheet(sweeps: Sequence[Loading], data: str | None) -> Sheet:
    """Return a table with a row per workload and kind of loader, and a column per number of workers."""
    rates: dict[tuple[str, str, str], dict[int, float]] = {}
    for item in sweeps:
        for setting in item.cells:
            by_count = rates.setdefault((_limit(item), _yes(setting.pinned), _starts(setting)), {})
            by_count[setting.workers] = max(setting.rate, by_count.get(setting.workers, setting.rate))
    counts = sorted({count for by_count in rates.values() for count in by_count})
    named = [f"{count} workers" if index == 0 else str(count) for index, count in enumerate(counts)]
    return Sheet(
        title="Data loading, samples per second",
        head=("bound by", "pinned", "workers start", *named),
        rows=[[*kind, *(cell(by_count.get(count), ".0f") for count in counts)] for kind, by_count in rates.items()],
        left=3,
        notes=(*([] if data is None else [data]), *(note for item in sweeps for note in _notes(item))),
        noisy=any(item.noisy for item in sweeps),
    )


def _notes(item: Loading) -> list[str]:
    """Return the recommended settings for one workload, and the effect of each option."""
    notes = []
    if item.options:
        use = ", ".join(f"{name}={value}" for name, value in item.options)
        rate = "" if item.rate is None else f": {item.rate:.0f} samples/s"
        gain = f"; {item.gained}" if item.gained else ""
        declared = "" if item.declared in (None, item.recommended) else f"; the image declares {item.declared} workers"
        notes.append(f"Recommended on this machine, {_by(item)}: {use}{rate}{gain}{declared}.")
    if item.effects:
        effects = ", ".join(f"{name} {factor:.2f}x" for name, factor in item.effects)
        notes.append(f"Effect of each option, {_by(item)}: {effects}.")
    if item.left_out:
        total = len(item.cells) + item.left_out
        missing = f"; none with {' or '.join(item.unmeasured)}" if item.unmeasured else ""
        notes.append(f"Time limit: {len(item.cells)} of {total} settings were measured, {_by(item)}{missing}.")
    return notes


def _limit(item: Loading) -> str:
    """Return what limits a workload."""
    return _LIMITS.get(item.workload, item.workload)


def _by(item: Loading) -> str:
    return _WORKLOADS[item.workload] if item.workload in _OWN else f"bound by {_limit(item)}"


def show(checks: Sequence[Tree]) -> Shown:
    """Show the throughput of every setting of the loader, and the settings recommended for this machine."""
    sweeps = loadings(checks)
    return Shown(
        ident="loading",
        title="Data loading",
        sheets=tables(_sheet(sweeps, _data(checks))),
        figures=tuple(_figure(index, item) for index, item in enumerate(sweeps)),
        tiles=tuple(_tile(item) for item in sweeps if item.recommended is not None)[:1],
        details=tables(_details(sweeps)),
        remark="The vertical line marks the recommended number of workers: the smallest whose rate is within 10 % of"
        " the best. Where several settings share a point, the fastest is drawn.",
    )


def _data(checks: Sequence[Tree]) -> str | None:
    """Return what was measured of the user's data, or None if the run had none."""
    data_check = next((check for check in checks if check["id"] == "C12.data"), None)
    return None if data_check is None else f"Measured with your data: {clean(data_check['message'])}."


def _details(sweeps: Sequence[Loading]) -> Sheet:
    rows = [
        [
            _limit(item),
            str(setting.workers),
            _yes(setting.pinned),
            _starts(setting),
            str(setting.prefetch or "-"),
            f"{setting.rate:.0f}",
        ]
        for item in sweeps
        for setting in sorted(
            item.cells, key=lambda candidate: (candidate.workers, candidate.pinned, candidate.persistent)
        )
    ]
    head = ("Bound by", "Workers", "Pinned", "Workers start", "Prefetch", "Samples per second")
    return Sheet("Samples per second of every setting", head, rows, left=4)
