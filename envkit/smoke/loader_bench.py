"""The loader benchmark: samples per second over num_workers, persistent_workers and pin_memory."""

import time

from . import hostfacts, loaders, noise, timing, user_data
from .observation import control, ran, skipped

# The largest number of workers is twice this. With more, the quick tier would measure little but process starts.
WORKER_CAP = 8
SLEEP_S = 0.004  # as for a sample from network storage
TIMED_EPOCHS = 2  # after one that starts the workers
# Time limits of the cells of one workload in seconds; the observation lists cells that are left out. The first CERTAIN
# cells are always measured: without workers, and with one per CPU.
CERTAIN = 2
SWEEP_S = 1.5
MATRIX_S = 12.0
# Limit for the user's own data, whose samples may be slow.
OWN_S = 10.0
QUIET_S = 0.15  # idle time before and after, to measure the load of other processes
# Rates closer than this count as equal, and the smaller number of workers is recommended.
SAME_RATE = 0.90
AXES = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
# torch's default first: if time runs out, the other value is left out.
PREFETCHES = (2, 4)


def run(ctx):
    """Yield the throughput of two workloads and, from the standard tier on, of every combination of options.

    cpu is bound by decoding, io by waiting. The user's own data replaces both and adds the observation C12.data.
    """
    cpus = hostfacts.cpus()["effective"]
    unit = min(WORKER_CAP, hostfacts.whole_cpus(cpus))
    own = user_data.Own(ctx) if ctx.spec.get("data") else None
    if own is not None and not own.usable:
        yield own.observation()
        yield skipped(f"C12.throughput.{own.name}", ctx.subject, "NO_DATA", "there is no sample to load")
        return
    work = works() if own is None else {own.name: own.work()}
    sweeps = {"throughput": (plan(sorted({0, unit, 2 * unit}), ctx.has_cuda), SWEEP_S if own is None else OWN_S)}
    if ctx.tier != "quick":
        sweeps["matrix"] = matrix(sorted({0, 1, unit, 2 * unit}), ctx.has_cuda), MATRIX_S
    for what, (cells, limit_s) in sweeps.items():
        sweep = Sweep(ctx, cpus, cells, limit_s, own)
        for name, described in work.items():
            yield sweep.run(f"C12.{what}.{name}", name, *described)
    if own is not None:
        yield own.observation()


def works():
    """Return the two workloads by name, each (batch size, fewest samples per epoch, function that makes the data)."""
    return {
        "cpu": (8, 96, lambda length, factor=1: loaders.Decoding(length, blocks=2 * factor)),
        "io": (4, 48, lambda length, factor=1: loaders.Slow(length, SLEEP_S * factor)),
    }


class Sweep:
    """Cells to measure: (num_workers, persistent_workers, pin_memory, prefetch_factor).

    A cell is skipped if it would end after ``limit_s`` seconds, assuming that it takes as long as the slowest cell so
    far. The observation lists skipped cells, and the exceptions of cells that raise with the user's ``own`` data.
    """

    def __init__(self, ctx, cpus, cells, limit_s, own=None):
        self.ctx = ctx
        self.cpus = cpus
        self.cells = cells
        self.limit_s = limit_s
        self.own = own

    def run(self, check_id, name, batch, fewest, build):
        """Measure one workload."""
        ctx = self.ctx
        length = max(fewest, 2 * batch * max(cell[0] for cell in self.cells))
        before = noise.quiet_window(QUIET_S)
        begin = time.monotonic()
        cells, left_out, failed, slowest = [], [], [], 0.0
        for cell in self.cells:
            start = time.monotonic()
            if len(cells) + len(failed) >= CERTAIN and start + slowest - begin > self.limit_s:
                left_out.append(dict(zip(AXES, cell)))  # noqa: B905 - strict= came after Python 3.8
                continue
            try:
                # Without workers the rate does not depend on the epoch's length, so a short one is enough.
                cells.append(_cell(ctx, build(length if cell[0] else fewest), batch, cell))
            except Exception as error:
                if self.own is None:
                    raise
                failed.append(self.own.report("the loader", error))
            slowest = max(slowest, time.monotonic() - start)
        after = noise.quiet_window(QUIET_S)
        if not cells:
            message = f"every setting of the loader ended in {', '.join(sorted(set(failed)))}"
            return skipped(check_id, ctx.subject, "LOADER_FAILED", message)
        chosen = recommend(cells)
        observed = {
            "workload": name,
            "batch": batch,
            "effective_cpus": self.cpus,
            "cells": cells,
            "cells_left_out": left_out,
            "recommended": {key: chosen[key] for key in AXES},
            "samples_per_s": chosen["samples_per_s"],
            "best_workers_over_none": gain(cells),
            "effects": effects(cells),
            "declared_num_workers": (ctx.spec.get("loader") or {}).get("num_workers"),
        }
        if failed:
            observed["cells_failed"] = failed
        return ran(
            check_id,
            ctx.subject,
            observed,
            [_work_control(ctx, build if self.own is None else works()["cpu"][2]), _choice_control()],
            samples=timing.sample_record(chosen["epochs_ms"], clock=_clock_name(ctx), warmup_discarded=1),
            stats=timing.statistics(chosen["epochs_ms"]),
            noise=before if before["gate"] != "clean" else after,
        )


def _cell(ctx, data, batch, cell):
    """Run epochs with one setting. Of the first epoch only the time to its first batch is kept."""
    num_workers, persistent, pin, prefetch = cell
    options = dict(getattr(data, "options", {}), batch_size=batch, num_workers=num_workers, pin_memory=pin)
    if num_workers:
        options["persistent_workers"] = persistent
        options["prefetch_factor"] = prefetch or PREFETCHES[0]
    loader = loaders.loader(ctx.torch, data, **options)
    try:
        _, first_batch_ms = _epoch(ctx, loader)
        epochs_ms = [_epoch(ctx, loader)[0] for _ in range(TIMED_EPOCHS)]
    finally:
        loaders.stop(getattr(loader, "_iterator", None))
    return {
        "num_workers": num_workers,
        "persistent_workers": persistent,
        "pin_memory": pin,
        "prefetch_factor": options.get("prefetch_factor"),
        "samples_per_s": 1e3 * len(data) / timing.median(epochs_ms),
        "first_batch_ms": first_batch_ms,
        "epochs_ms": epochs_ms,
    }


def _epoch(ctx, loader):
    """Copy all batches to the device; return (total milliseconds, milliseconds to the first batch)."""
    first = None
    begin = time.perf_counter()
    iterator = loaders.iterate(loader)
    try:
        for item in iterator:
            _bring(item, ctx.device)
            if ctx.has_cuda:
                ctx.torch.cuda.synchronize()
            if first is None:
                first = (time.perf_counter() - begin) * 1e3
    except Exception:
        loaders.stop(iterator)
        raise
    return (time.perf_counter() - begin) * 1e3, first


def _bring(batch, device):
    """Copy every tensor of a batch to the device."""
    if hasattr(batch, "to"):
        batch.to(device, non_blocking=True)
    elif isinstance(batch, (dict, list, tuple)):
        for item in batch.values() if isinstance(batch, dict) else batch:
            _bring(item, device)


def _clock_name(ctx):
    return "perf_counter+sync" if ctx.has_cuda else "perf_counter"


def _work_control(ctx, build):
    """Return the control that samples with twice the work take clearly longer to read.

    Both sides run in turns. Other processes only add time, so the fastest epoch of each side gets closer to the real
    cost with every round. The rounds end as soon as the difference is clear.
    """
    once, twice = (loaders.loader(ctx.torch, build(8, factor), batch_size=8, num_workers=0) for factor in (1, 2))
    fastest_once = fastest_twice = float("inf")
    ratio = 0.0
    for rounds in range(1, 10):
        fastest_once = min(fastest_once, _epoch(ctx, once)[0])
        fastest_twice = min(fastest_twice, _epoch(ctx, twice)[0])
        ratio = fastest_twice / fastest_once
        if rounds >= 3 and ratio > 1.4:
            break
    return control("twice_the_work_is_seen", ratio > 1.4, f"{ratio:.2f} times as long")


def _choice_control():
    """Return the control that no workers are recommended if they gain nothing."""
    flat = [
        {"num_workers": count, "prefetch_factor": None, "samples_per_s": rate}
        for count, rate in ((0, 100.0), (2, 101.0), (4, 99.0))
    ]
    return control("no_gain_recommends_no_workers", recommend(flat)["num_workers"] == 0)


def plan(workers, has_cuda):
    """Return the cells of the quick tier, the most informative first. A value of None is torch's default."""
    cells = [(count, count > 0, False, None) for count in workers]
    if has_cuda:
        cells += [(count, count > 0, True, None) for count in workers]
    return cells + [(count, False, False, None) for count in workers if count > 0]


def matrix(workers, has_cuda):
    """Return every combination of options. The first cells vary num_workers, so that a time limit cuts the others."""
    pins = (False, True) if has_cuda else (False,)
    cells = [
        (count, count > 0 and persistent, pin, prefetch if count else None)
        for prefetch in PREFETCHES
        for persistent in (True, False)
        for pin in pins
        for count in workers
    ]
    return list(dict.fromkeys(cells))


def effects(cells):
    """Return the factor by which each option changes the rate: the median over pairs of cells that differ only in it.

    ``{"persistent_workers": 1.05, "pin_memory": None, "prefetch_factor": 0.99}``: on over off, for prefetch_factor the
    larger value over the smaller one; None without such a pair.
    """
    factors = {}
    for option in ("persistent_workers", "pin_memory", "prefetch_factor"):
        rest = [name for name in AXES if name != option]
        ratios = [
            more["samples_per_s"] / less["samples_per_s"]
            for more in cells
            for less in cells
            if more["num_workers"] and all(more[name] == less[name] for name in rest) and more[option] > less[option]
        ]
        factors[option] = sorted(ratios)[len(ratios) // 2] if ratios else None
    return factors


def recommend(cells):
    """Return the cell to use: within 10 % of the best rate, fewest workers, then least prefetching, then the rate."""
    if not cells:
        return None
    best = max(cell["samples_per_s"] for cell in cells)
    close = [cell for cell in cells if cell["samples_per_s"] >= SAME_RATE * best]
    return min(close, key=lambda cell: (cell["num_workers"], cell["prefetch_factor"] or 0, -cell["samples_per_s"]))


def gain(cells):
    """Return the best rate with workers divided by the rate without, both unpinned; None if one is missing."""
    none = [cell["samples_per_s"] for cell in cells if not cell["num_workers"] and not cell["pin_memory"]]
    some = [cell["samples_per_s"] for cell in cells if cell["num_workers"] and not cell["pin_memory"]]
    return max(some) / none[0] if none and some else None
