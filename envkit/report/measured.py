"""The numbers that pictures and their tables are made of, read from a record that may lack any of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from envkit.report.lines import clean
from envkit.report.reading import Tree, check_of, is_noisy, is_number, mapping, number, sequence

_COPY = re.compile(r"C10\.(h2d|d2h)_(pinned|pageable)_(\d+)MiB")
_BENCH = re.compile(r"C14\.bench\.([^.]+)\.([^.]+)")
_FEWEST_SAMPLES = 4
_WHOLE = 1.05
_EFFECTS = ("prefetch_factor", "persistent_workers", "pin_memory")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bandwidth of one direction in GB/s (1e9 bytes) by size in MiB; `limit` is the link's, where it is known."""

    way: str  # 'h2d' | 'd2h'
    pinned: dict[int, float] = field(default_factory=dict)
    pageable: dict[int, float] = field(default_factory=dict)
    limit: float | None = None
    floor: float | None = None  # GB/s; below it the check fails
    floor_at: int | None = None  # MiB; the one size of pinned memory that the floor holds for
    noisy: bool = False


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
    """The loader's sweep over one workload. `options` are the recommended settings, `effects` what each one brings."""

    workload: str
    cells: tuple[Cell, ...]
    recommended: int | None  # num_workers
    noisy: bool
    options: tuple[tuple[str, int], ...] = ()  # switches only where they are on
    rate: float | None = None  # samples per second with them
    gain: float | None = None  # the best rate with workers over the rate without
    effects: tuple[tuple[str, float], ...] = ()  # the rate with the option over the rate without
    declared: int | None = None  # num_workers that the image declares
    left_out: int = 0  # settings for which there was no time


@dataclass(frozen=True, slots=True)
class Precision:
    """One training step of a network in one precision; ratios are to strict float32."""

    network: str
    precision: str
    step_ms: float
    time_ratio: float | None
    memory_bytes: float | None
    memory_ratio: float | None
    gradient_error: float | None
    loss_error: float | None
    noisy: bool
    peak: bool = False  # the memory is the peak of a step, else what is saved for backward


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product in one precision: its rate in TFLOP/s and over strict float32."""

    precision: str
    tflops: float | None
    over_fp32: float | None
    noisy: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """What autocast saves for backward at one batch size, relative to float32."""

    batch: int
    ratio: float
    dtype: str = ""
    fp32_bytes: float | None = None
    amp_bytes: float | None = None
    peak_ratio: float | None = None  # of a whole step, on a GPU


@dataclass(frozen=True, slots=True)
class StepTime:
    """C23's training step in milliseconds: as it is and in its parts, with one batch reused, and its loader alone."""

    full_ms: float
    reused_ms: float
    loader_ms: float | None
    parts: tuple[tuple[str, float], ...]  # ('data_wait' | 'h2d' | 'compute', ms)
    starved: float  # share of the full step that the loader costs, 0..1
    noisy: bool
    bottleneck: str = ""  # as the verdict names it
    told: str = ""  # the verdict's sentence
    advice: tuple[str, ...] = ()

    @property
    def overlapping(self) -> bool:
        """Whether the parts are more than the whole: the host waits for data while the device still computes."""
        return sum(value for _, value in self.parts) > self.full_ms * _WHOLE


@dataclass(frozen=True, slots=True)
class Spread:
    """The samples of one finding."""

    id: str
    values: tuple[float, ...]
    unit: str
    noisy: bool


def transfers(checks: Sequence[Tree]) -> list[Transfer]:
    """C10's copies, host to device first."""
    found: list[Transfer] = []
    for way in ("h2d", "d2h"):
        rates: dict[str, dict[int, float]] = {"pinned": {}, "pageable": {}}
        limit = floor = floor_at = None
        noisy = False
        for check in checks:
            named = _COPY.fullmatch(str(check["id"]))
            rate = mapping(check.get("observed")).get("gb_per_s")
            if not named or named[1] != way or not is_number(rate):
                continue
            rates[named[2]][int(named[3])] = rate
            noisy = noisy or is_noisy(check)
            carried, share = mapping(check.get("derived")).get("limit"), mapping(check.get("rule")).get("fail_below")
            limit = carried if is_number(carried) else limit
            if is_number(carried) and is_number(share):
                floor, floor_at = share * carried, int(named[3])
        if rates["pinned"] or rates["pageable"]:
            found.append(
                Transfer(way, _sorted(rates["pinned"]), _sorted(rates["pageable"]), limit, floor, floor_at, noisy)
            )
    return found


def loadings(checks: Sequence[Tree]) -> list[Loading]:
    """C12's throughput, one sweep per workload: the one with the most settings."""
    found: dict[str, Loading] = {}
    for check in checks:
        observed = mapping(check.get("observed"))
        cells = tuple(cell for item in sequence(observed.get("cells")) if (cell := _cell(mapping(item))) is not None)
        if check_of(check["id"]) == "C12" and cells:
            sweep = _sweep(check, observed, cells)
            found[sweep.workload] = max(found.get(sweep.workload, sweep), sweep, key=lambda one: len(one.cells))
    return list(found.values())


def precisions(checks: Sequence[Tree]) -> list[Precision]:
    """C14's training steps, in the order of the record."""
    memory: dict[tuple[str, str], float] = {}
    rows = []
    for check in checks:
        named, observed = _BENCH.fullmatch(str(check["id"])), mapping(check.get("observed"))
        if named and is_number(observed.get("step_ms")):
            held = observed.get("peak_bytes")
            held = observed.get("saved_bytes") if held is None else held
            if is_number(held):
                memory[named[1], named[2]] = held
            rows.append((named[1], named[2], observed, is_noisy(check)))
    return [
        Precision(
            network=clean(network),
            precision=clean(kind),
            step_ms=observed["step_ms"],
            time_ratio=number(observed.get("time_ratio_to_fp32")),
            memory_bytes=memory.get((network, kind)),
            memory_ratio=_ratio(memory.get((network, kind)), memory.get((network, "fp32"))),
            gradient_error=number(observed.get("grad_rel_l2")),
            loss_error=number(observed.get("loss_rel_err")),
            noisy=noisy,
            peak=number(observed.get("peak_bytes")) is not None,
        )
        for network, kind, observed, noisy in rows
    ]


def product_rates(checks: Sequence[Tree]) -> list[Product]:
    """C15's matrix products, strict float32 first."""
    found, strict = [], None
    for check in checks:
        observed = mapping(check.get("observed"))
        rate, gain = number(observed.get("tflops")), number(observed.get("over_fp32"))
        if check_of(check["id"]) == "C15" and rate is not None:
            strict = number(observed.get("tflops_fp32")) or strict
            found.append(Product(clean(observed.get("precision")), rate, gain, is_noisy(check)))
    return [Product("fp32", strict, None, noisy=False), *found] if found else []


def saved_ratios(checks: Sequence[Tree]) -> list[Saved]:
    """C16's batch sizes, the smallest first."""
    found = []
    for check in checks:
        observed = mapping(check.get("observed"))
        batch, held = observed.get("batch"), number(observed.get("saved_ratio"))
        if check_of(check["id"]) == "C16" and isinstance(batch, int) and held is not None:
            full, low = (number(observed.get(f"saved_bytes_{kind}")) for kind in ("fp32", "amp"))
            peak = _ratio(number(observed.get("peak_bytes_amp")), number(observed.get("peak_bytes_fp32")))
            found.append(Saved(batch, held, clean(observed.get("dtype") or ""), full, low, peak))
    return sorted(found, key=lambda item: item.batch)


def step_time(checks: Sequence[Tree]) -> StepTime | None:
    """C23's breakdown; None where it was not measured."""
    for check in checks:
        observed = mapping(check.get("observed"))
        full, reused = _ms(observed.get("step_s")), _ms(observed.get("step_without_loader_s"))
        if check_of(check["id"]) == "C23" and full and reused is not None:
            starved = min(max(1 - reused / full, 0.0), 1.0)
            timed = ((part, _ms(observed.get(f"{part}_s"))) for part in ("data_wait", "h2d", "compute"))
            parts = tuple((part, value) for part, value in timed if value is not None)
            return StepTime(
                full_ms=full,
                reused_ms=reused,
                loader_ms=_ms(observed.get("loader_alone_s")),
                parts=parts,
                starved=starved,
                noisy=is_noisy(check),
                bottleneck=clean(mapping(check.get("derived")).get("bottleneck") or ""),
                # Where it fails, the verdict is about the loss.
                told="" if check.get("verdict") == "FAIL" else clean(check.get("message") or ""),
                advice=() if check.get("verdict") == "FAIL" else tuple(map(clean, sequence(check.get("advice")))),
            )
    return None


def spreads(checks: Sequence[Tree]) -> dict[str, list[Spread]]:
    """The samples of each check whose findings have enough of them to show."""
    found: dict[str, list[Spread]] = {}
    for check in checks:
        samples = mapping(check.get("samples"))
        values = tuple(value for value in sequence(samples.get("values")) if is_number(value) and value > 0)
        if len(values) >= _FEWEST_SAMPLES:
            spread = Spread(clean(check["id"]), values, clean(samples.get("unit") or ""), is_noisy(check))
            found.setdefault(check_of(check["id"]), []).append(spread)
    return found


def _sweep(check: Tree, observed: Tree, cells: tuple[Cell, ...]) -> Loading:
    chosen, declared = mapping(observed.get("recommended")), number(observed.get("declared_num_workers"))
    workers = number(chosen.get("num_workers"))
    named = ((name, chosen.get(name)) for name in ("num_workers", *_EFFECTS))
    brought = ((name, number(mapping(observed.get("effects")).get(name))) for name in _EFFECTS)
    return Loading(
        workload=clean(observed.get("workload") or str(check["id"]).rpartition(".")[2]),
        cells=cells,
        recommended=None if workers is None else int(workers),
        noisy=is_noisy(check),
        options=tuple((name, value) for name, value in named if isinstance(value, int) and value is not False),
        rate=number(observed.get("samples_per_s")),
        gain=number(observed.get("best_workers_over_none")),
        effects=tuple((name, value) for name, value in brought if value is not None),
        declared=None if declared is None else int(declared),
        left_out=len(sequence(observed.get("cells_left_out"))),
    )


def _cell(item: Tree) -> Cell | None:
    workers, rate, ahead = item.get("num_workers"), item.get("samples_per_s"), item.get("prefetch_factor")
    if not isinstance(workers, int) or not is_number(rate):
        return None
    prefetch = ahead if isinstance(ahead, int) else None
    return Cell(workers, bool(item.get("pin_memory")), bool(item.get("persistent_workers")), prefetch, rate)


def _sorted(rates: dict[int, float]) -> dict[int, float]:
    return dict(sorted(rates.items()))


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _ms(seconds: object) -> float | None:
    return seconds * 1e3 if is_number(seconds) and seconds >= 0 else None
