"""What a record says of the machine and its libraries: overlap, compiler, processes, decoders, storage, load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envkit.report.lines import clean
from envkit.report.reading import Tree, check_of, is_noisy, mapping, number, sequence

_ACCESSES = {
    "C22.image_read": ("read in order", "gb_per_s", "GB/s", ".2f"),
    "C22.image_random": ("4 KiB at random places", "reads_per_s", "reads/s", ".0f"),
    "C22.scratch_write": ("written and synchronised", "gb_per_s", "GB/s", ".2f"),
}


@dataclass(frozen=True, slots=True)
class Overlap:
    """C11: milliseconds of a copy, of kernels and of both; the share of the shorter that hides behind the other."""

    copy_ms: float
    kernels_ms: float
    both_ms: float
    one_stream_ms: float | None
    shares: tuple[tuple[str, float], ...]  # ('pinned' | 'same_stream' | 'pageable', share)
    noisy: bool


@dataclass(frozen=True, slots=True)
class Compiled:
    """C18: the first call of a compiled function in seconds, later calls and eager ones in milliseconds."""

    first_s: float
    compiled_ms: float | None
    eager_ms: float | None
    speed_up: float | None
    kernels: float | None


@dataclass(frozen=True, slots=True)
class Decoding:
    """C21: pictures per second of each JPEG decoder at one size, on one thread; how far each is from Pillow."""

    width: float
    height: float
    rates: tuple[tuple[str, float], ...]
    differences: dict[str, float]  # levels of 256
    decode_share: float | None  # of preparing a picture with Pillow
    noisy: bool
    absent: tuple[str, ...] = ()  # not installed in the image
    advice: tuple[str, ...] = ()  # of a finding that is not wrong: the others stand among the checks


@dataclass(frozen=True, slots=True)
class Access:
    """C22: one way to use storage. `cached` says that the page cache may have answered."""

    what: str
    rate: float
    unit: str
    form: str  # how the rate is written
    filesystem: str
    cached: bool


@dataclass(frozen=True, slots=True)
class Group:
    """C20: processes joined by one backend. Bandwidth in GB/s, where it was measured."""

    backend: str
    ranks: int
    wrong: float | None  # elements of all-reduces
    difference: float | None  # of DDP's gradient, relative
    algorithm: float | None
    bus: float | None
    noisy: bool


@dataclass(frozen=True, slots=True)
class Sustained:
    """C24: rate at the begin and the end of the load in TFLOP/s, and what the device said meanwhile."""

    seconds: float
    dtype: str
    first: float | None
    last: float | None
    clocks: tuple[tuple[float, float], ...]  # (s, MHz)
    boost: float | None  # MHz
    celsius: float | None  # the most
    watts: float | None  # the most
    events: tuple[str, ...]
    errors: tuple[tuple[str, int | None], ...]  # None: not told here


def overlap(checks: Sequence[Tree]) -> Overlap | None:
    """C11's times; None where they were not measured."""
    for check, observed in _of(checks, "C11"):
        times, shares = mapping(observed.get("times_ms")), mapping(observed.get("overlap"))
        copy, kernels, both = (number(times.get(name)) for name in ("copy", "compute", "both"))
        if copy is not None and kernels is not None and both is not None:
            told = ((name, number(shares.get(name))) for name in ("pinned", "same_stream", "pageable"))
            known = tuple((name, share) for name, share in told if share is not None)
            return Overlap(copy, kernels, both, number(times.get("same_stream")), known, is_noisy(check))
    return None


def compiled(checks: Sequence[Tree]) -> Compiled | None:
    """C18's times; None where nothing was compiled."""
    for _, observed in _of(checks, "C18"):
        first = number(observed.get("cold_s"))
        if first is not None:
            warm, eager = number(observed.get("warm_ms")), number(observed.get("eager_ms"))
            counts = [count for count in map(number, mapping(observed.get("kernels")).values()) if count is not None]
            gain = eager / warm if eager is not None and warm else None
            return Compiled(first, warm, eager, gain, sum(counts) if counts else None)
    return None


def decodings(checks: Sequence[Tree]) -> list[Decoding]:
    """C21's picture sizes, in the order of the record."""
    found = []
    for check, observed in _of(checks, "C21"):
        times = {clean(name): number(took) for name, took in mapping(observed.get("decode_ms")).items()}
        rates = tuple((name, 1e3 / took) for name, took in times.items() if took)
        apart = mapping(observed.get("largest_difference")).items()
        differences = {clean(name): value for name, levels in apart if (value := number(levels)) is not None}
        width, height = number(observed.get("width")), number(observed.get("height"))
        if rates and width is not None and height is not None:
            share, absent = number(observed.get("decode_share")), tuple(map(clean, sequence(observed.get("absent"))))
            advice = tuple(map(clean, sequence(check.get("advice")))) if check.get("verdict") == "PASS" else ()
            found.append(Decoding(width, height, rates, differences, share, is_noisy(check), absent, advice))
    return found


def accesses(checks: Sequence[Tree]) -> list[Access]:
    """C22's reads and writes, in the order of the record."""
    found = []
    for check, observed in _of(checks, "C22"):
        what, key, unit, form = _ACCESSES.get(str(check["id"]), ("", "", "", ""))
        rate = number(observed.get(key))
        if rate is not None:
            kind = clean(observed.get("filesystem") or "unknown")
            found.append(Access(what, rate, unit, form, kind, observed.get("direct") is False))
    return found


def process_groups(checks: Sequence[Tree]) -> list[Group]:
    """C20's groups, one per backend; one that gave no answer is none."""
    merged: dict[str, dict[str, Tree]] = {}
    noisy = set()
    for check, observed in _of(checks, "C20"):
        part, _, backend = str(check["id"]).partition(".")[2].partition(".")
        if number(observed.get("ranks")) is not None and observed.get("outcome", "answered") == "answered":
            merged.setdefault(backend, {})[part] = observed
            noisy |= {backend} if is_noisy(check) else set()
    return [_group(backend, parts, noisy=backend in noisy) for backend, parts in merged.items()]


def _group(backend: str, parts: dict[str, Tree], *, noisy: bool) -> Group:
    sums, shared, rates = (mapping(parts.get(part)) for part in ("allreduce", "ddp", "bandwidth"))
    counts = [number(count) for count in mapping(sums.get("wrong")).values()]
    known = [count for count in counts if count is not None]
    ranks = max(int(number(observed.get("ranks")) or 0) for observed in parts.values())
    return Group(
        backend=clean(backend),
        ranks=ranks,
        wrong=sum(known) if known else None,
        difference=number(shared.get("difference")),
        algorithm=number(rates.get("algbw_gb_per_s")),
        bus=number(rates.get("busbw_gb_per_s")),
        noisy=noisy,
    )


def sustained(checks: Sequence[Tree]) -> Sustained | None:
    """C24's load and telemetry; None where there was no load."""
    parts = {str(check["id"]): observed for check, observed in _of(checks, "C24")}
    load, told = mapping(parts.get("C24.load")), mapping(parts.get("C24.telemetry"))
    seconds = number(load.get("seconds"))
    if seconds is None:
        return None
    rows = [mapping(row) for row in sequence(told.get("rows"))]
    timed = ((number(row.get("at_s")), number(row.get("sm_mhz"))) for row in rows)
    xids = told.get("xids")
    return Sustained(
        seconds=seconds,
        dtype=clean(load.get("dtype") or ""),
        first=number(load.get("tflops_first")),
        last=number(load.get("tflops_last")),
        clocks=tuple((at, clock) for at, clock in timed if at is not None and clock is not None),
        boost=number(told.get("max_sm_mhz")),
        celsius=_most(rows, "celsius"),
        watts=_most(rows, "watts"),
        events=tuple(sorted({clean(event) for row in rows for event in sequence(row.get("events"))})),
        errors=(
            ("Xid messages", len(xids) if isinstance(xids, list) else None),
            ("uncorrectable memory errors", _count(told.get("uncorrected_ecc"))),
            ("PCIe replays", _count(told.get("pcie_replays"))),
        ),
    )


def _of(checks: Sequence[Tree], check_id: str) -> Iterator[tuple[Tree, Tree]]:
    return ((check, mapping(check.get("observed"))) for check in checks if check_of(check["id"]) == check_id)


def _most(rows: Sequence[Tree], key: str) -> float | None:
    return max((value for row in rows if (value := number(row.get(key))) is not None), default=None)


def _count(value: object) -> int | None:
    told = number(value)
    return None if told is None else int(told)
