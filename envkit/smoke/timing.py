"""How every timed check measures: warm up to stability, size the inner loop, interleave the variants.

A clock is a callable ``clock(fn, loops) -> milliseconds for all loops`` with a ``label`` attribute. Tests hand in
a clock of their own, so the protocol is tested without waiting.

Beside the wall clock, work that this process does itself is timed by its processor time, which stands still while
others hold the processor: launches on a busy machine are compared by it.

Use::

    measured = timing.measure([("pinned", f), ("pageable", g)], clock=timing.wall_clock(sync))
    measured["pinned"]["samples"]   # the record's "samples" object
    measured["pinned"]["stats"]     # the record's "stats" object
"""

import contextlib
import time

SAMPLES = 20  # of each variant
MAX_VALUES = 200  # that a document carries of each
MIN_SAMPLE_MS = 10.0  # shorter ones are several calls: clocks and launches would show
WARMUP_WINDOW = 5  # calls whose median is compared with that of as many before
WARMUP_AGREEMENT = 0.05  # relative difference of two windows of a warm variant
WARMUP_MIN_DISCARDED = 3  # the first calls choose algorithms and allocate
WARMUP_CAP_S = 2.0  # what never settles is measured all the same, and is told
MAX_INNER_LOOPS = 100000  # a call that takes no time has a fault elsewhere
# Cycles that the spin kernel runs per queued call: about 20 us on a 2 GHz device, longer than a launch takes.
SPIN_CYCLES_PER_CALL = 40000
SPIN_CYCLES_MAX = 40000000  # 20 ms; a longer kernel looks like a hang to a desktop's driver
# The self-test's slowdown repeats the timed body in this many parts of a call: 1.25 and 1.5 are exact.
BODY_PARTS = 4
HOST_CLOCK = "perf_counter"
EVENT_CLOCK = "cuda_event"  # the GPU itself keeps this time

_launch = {"body_factor": 1.0, "effort": 1.0}


def prepare_launch(launch):
    """Make every later ``measure`` part of a comparison of launches.

    ``effort``: how many times as many samples and seconds. ``body_factor``: how many times the work that is reported,
    the self-test's known slowdown; the samples say so. Both are 1 to 8; raises ValueError for anything else.
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
    """Value at ``fraction`` (0..1) of an ascending list, linear between neighbors."""
    position = (len(ordered) - 1) * fraction
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values):
    """Median of a non-empty list."""
    return quantile(sorted(values), 0.5)


def statistics(values):
    """Median, p25, p75, min, max, n and rel_iqr (interquartile range / median) of the values, or None for no values."""
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
    """Clock on ``time.perf_counter``; ``sync()`` (when given) runs before both readings, so queued work is counted."""

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
    """Clock on CUDA events of the current stream.

    A spin kernel is queued before the first event, so that the time the host needs to queue the calls
    lies outside the window (what nvbandwidth does).
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
    """How often to call ``fn`` so that one sample lasts ``min_sample_ms``; the first call is thrown away."""
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
    """Run samples until two successive 5-sample medians agree within 5 %; return how many were discarded.

    At least 3 are discarded; ``cap_s`` seconds (measured by the samples themselves) end it in any case.
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
    """Time the variants against each other, interleaved A B A B.

    ``variants``: list of (name, callable). ``bytes_per_call``: bytes one call moves (a number, or a dict by name), kept
    in the record. ``budget_s``: sampling ends after this many seconds, though never before 5 rounds.
    Returns {name: {"samples": {unit "ms" per call, n, warmup_discarded, inner_loops, bytes, clock, values, and
    cpu_values where the clock waits for no device}, "stats": {...}}}.
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
    found = {
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
        for item in found.values():
            item["samples"]["body_factor"] = factor
    return found


def sample_record(values, *, clock, warmup_discarded=0, inner_loops=1, bytes_per_call=None, cpu_values=None):
    """The record's "samples" object; ``n`` counts all values, at most 200 of them are kept."""
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
    """One intra-op thread inside the block, for the CPU where threads are not the subject.

    Threads that wait for each other spin: with one other busy process two of them take five times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
