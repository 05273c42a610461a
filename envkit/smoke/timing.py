"""The timing protocol of all checks: warm up until stable, size the inner loop, interleave the variants.

A clock is a callable ``clock(fn, loops) -> milliseconds for all loops`` with a ``label`` attribute. Tests pass their
own clock, so that the protocol is tested without waiting.

Work of this process itself is also timed in CPU time, which does not advance while other processes use the CPU:
comparisons of launches on a busy machine use it.

Use::

    measured = timing.measure([("pinned", f), ("pageable", g)], clock=timing.wall_clock(sync))
    measured["pinned"]["samples"]   # the record's "samples" object
    measured["pinned"]["stats"]     # the record's "stats" object
"""

import contextlib
import time

SAMPLES = 20  # per variant
MAX_VALUES = 200  # values per variant in the document
MIN_SAMPLE_MS = 10.0  # shorter calls are repeated: otherwise the overhead of clocks and launches would count
WARMUP_WINDOW = 5  # samples per window; the medians of two successive windows are compared
WARMUP_AGREEMENT = 0.05  # relative difference of two windows at which a variant is warm
WARMUP_MIN_DISCARDED = 3  # the first calls choose algorithms and allocate memory
WARMUP_CAP_S = 2.0  # a variant that never becomes stable is measured anyway
MAX_INNER_LOOPS = 100000  # stops the search for calls that take no time
# Cycles that the spin kernel runs per queued call: about 20 us on a 2 GHz device, longer than a launch takes.
SPIN_CYCLES_PER_CALL = 40000
SPIN_CYCLES_MAX = 40000000  # 20 ms; the driver of a desktop takes a much longer kernel for a hang
# The self-test's slowdown repeats the timed body in this many parts of a call: 1.25 and 1.5 are exact.
BODY_PARTS = 4
HOST_CLOCK = "perf_counter"
EVENT_CLOCK = "cuda_event"  # the GPU's own clock

_launch = {"body_factor": 1.0, "effort": 1.0}


def prepare_launch(launch):
    """Make every later ``measure`` part of a comparison of launches.

    ``effort``: factor on samples and seconds. ``body_factor``: the self-test's known slowdown: the timed work is
    repeated so many times per reported call, and the samples record it. Both are 1 to 8; other values raise ValueError.
    """
    if not isinstance(launch, dict):
        raise ValueError(f"launch is an object, not {launch!r}")  # noqa: TRY004 - main reports it
    for name in _launch:
        value = launch.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 8:
            raise ValueError(f"launch.{name} is 1 to 8, not {value!r}")
        _launch[name] = float(value)


def effort():
    """Return the factor on samples and seconds of every ``measure``; 1 except in a comparison of launches."""
    return _launch["effort"]


def quantile(ordered, fraction):
    """Return the quantile at ``fraction`` (0..1) of an ascending list, by linear interpolation."""
    position = (len(ordered) - 1) * fraction
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values):
    """Return the median of a non-empty list."""
    return quantile(sorted(values), 0.5)


def statistics(values):
    """Return median, p25, p75, min, max, n and rel_iqr (interquartile range / median), None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    p25 = quantile(ordered, 0.25)
    p75 = quantile(ordered, 0.75)
    return {
        "median": middle,
        "p25": p25,
        "p75": p75,
        "min": ordered[0],
        "max": ordered[-1],
        "n": len(ordered),
        "rel_iqr": (p75 - p25) / middle if middle else None,
    }


def wall_clock(sync=None):
    """Return a clock on ``time.perf_counter``. ``sync()``, if given, runs before both readings to count queued work."""

    def clock(fn, loops):
        if sync is not None:
            sync()
        start = time.perf_counter()
        for _ in range(loops):
            fn()
        if sync is not None:
            sync()
        return (time.perf_counter() - start) * 1e3

    clock.label = HOST_CLOCK if sync is None else HOST_CLOCK + "+sync"
    return clock


def event_clock(torch):
    """Return a clock on CUDA events of the current stream.

    A spin kernel is queued before the first event, so that the host's time to queue the calls is not measured, as in
    nvbandwidth.
    """
    sleep = getattr(torch.cuda, "_sleep", None)

    def clock(fn, loops):
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        if sleep is not None:
            sleep(min(SPIN_CYCLES_MAX, SPIN_CYCLES_PER_CALL * loops))
        first.record()
        for _ in range(loops):
            fn()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    clock.label = EVENT_CLOCK
    return clock


def inner_loops(fn, clock, min_sample_ms=MIN_SAMPLE_MS):
    """Return how many calls of ``fn`` last ``min_sample_ms``. The first call is not counted."""
    clock(fn, 1)
    loops = 1
    while loops < MAX_INNER_LOOPS:
        took = clock(fn, loops)
        if took >= min_sample_ms:
            return loops
        wanted = loops * min_sample_ms / took if took > 0 else loops * 10
        loops = min(MAX_INNER_LOOPS, max(loops + 1, int(min(wanted * 1.1, loops * 10)) + 1))
    return loops


def warm_up(fn, clock, loops, cap_s=WARMUP_CAP_S):
    """Run samples until the medians of two successive windows agree; return how many samples were discarded.

    At least WARMUP_MIN_DISCARDED are discarded. The warm-up ends after ``cap_s`` seconds of samples in any case.
    """
    seen = []
    spent_ms = 0.0
    while True:
        took = clock(fn, loops)
        seen.append(took)
        spent_ms += took
        if len(seen) < WARMUP_MIN_DISCARDED:
            continue
        if spent_ms >= cap_s * 1e3:
            return len(seen)
        if len(seen) >= 2 * WARMUP_WINDOW:
            older = median(seen[-2 * WARMUP_WINDOW : -WARMUP_WINDOW])
            newer = median(seen[-WARMUP_WINDOW:])
            if abs(newer - older) <= WARMUP_AGREEMENT * max(newer, older):
                return len(seen)


def measure(
    variants,
    clock,
    *,
    samples=SAMPLES,
    min_sample_ms=MIN_SAMPLE_MS,
    warmup_cap_s=WARMUP_CAP_S,
    bytes_per_call=None,
    budget_s=None,
):
    """Time the variants interleaved, in the order A B A B.

    ``variants``: list of (name, callable). ``bytes_per_call``: bytes that one call moves (a number, or a dict by name),
    for the record. ``budget_s``: sampling ends after this many seconds, but not before 5 rounds.
    Returns {name: {"samples": {unit "ms" per call, n, warmup_discarded, inner_loops, bytes, clock, values, and
    cpu_values if the clock does not wait for a device}, "stats": {...}}}.
    """
    factor = _launch["body_factor"]
    samples = int(samples * effort())
    budget_s = None if budget_s is None else budget_s * effort()
    loops = {}
    bodies = {}
    discarded = {}
    for name, fn in variants:
        loops[name] = inner_loops(fn, clock, min_sample_ms)
        if factor != 1.0:
            loops[name] = -(-loops[name] // BODY_PARTS) * BODY_PARTS
        bodies[name] = round(loops[name] * factor)
        discarded[name] = warm_up(fn, clock, bodies[name], warmup_cap_s)
    values = {name: [] for name, _ in variants}
    cpu_values = {name: [] for name, _ in variants}
    start = time.perf_counter()
    for done in range(samples):
        if budget_s is not None and done >= WARMUP_WINDOW and time.perf_counter() - start > budget_s:
            break
        for name, fn in variants:
            cpu = time.process_time()
            values[name].append(clock(fn, bodies[name]) / loops[name])
            cpu_values[name].append((time.process_time() - cpu) * 1e3 / loops[name])
    moved = bytes_per_call if isinstance(bytes_per_call, dict) else {name: bytes_per_call for name, _ in variants}
    measured = {
        name: {
            "samples": sample_record(
                values[name],
                clock=clock.label,
                warmup_discarded=discarded[name],
                inner_loops=loops[name],
                bytes_per_call=moved.get(name),
                cpu_values=cpu_values[name] if clock.label == HOST_CLOCK else None,
            ),
            "stats": statistics(values[name]),
        }
        for name, _ in variants
    }
    if factor != 1.0:
        for item in measured.values():
            item["samples"]["body_factor"] = factor
    return measured


def sample_record(values, *, clock, warmup_discarded=0, inner_loops=1, bytes_per_call=None, cpu_values=None):
    """Return the record's "samples" object. ``n`` counts all values, of which at most MAX_VALUES are kept."""
    record = {
        "unit": "ms",
        "n": len(values),
        "warmup_discarded": warmup_discarded,
        "inner_loops": inner_loops,
        "bytes": bytes_per_call,
        "clock": clock,
        "values": list(values[:MAX_VALUES]),
    }
    if cpu_values is not None:
        record["cpu_values"] = list(cpu_values[:MAX_VALUES])
    return record


@contextlib.contextmanager
def single_thread(torch):
    """Use one intra-op thread inside the block, for CPU work in which threads are not what is measured.

    Threads spin while they wait for each other: with one other busy process, two threads take five times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
