"""The loader benchmark: samples per second over num_workers, persistent_workers and pin_memory."""

import time

from . import hostfacts, loader_plan, loaders, noise, timing
from .observation import control, ran

# Workers are swept up to twice this many; beyond it the quick tier would only count process starts.
WORKER_CAP = 8
SLEEP_S = 0.004
TIMED_EPOCHS = 2
# Seconds for the cells of one workload; what does not fit is named in the observation. The first CERTAIN cells are
# measured in any case: without workers, and with one for each CPU.
CERTAIN = 2
SWEEP_S = 2.0
MATRIX_S = 12.0
QUIET_S = 0.15


def run(ctx, check_id):
    """Return C12.throughput.cpu (bound by decoding) and C12.throughput.io (bound by waiting)."""
    cpus = hostfacts.cpus()["effective"]
    unit = min(WORKER_CAP, hostfacts.whole_cpus(cpus))
    cells = [(*cell, None) for cell in loader_plan.plan(sorted({0, unit, 2 * unit}), ctx.has_cuda)]
    sweep = Sweep(ctx, cpus, cells, SWEEP_S, loader_plan.recommend)
    return [sweep.run(f"{check_id}.throughput.{name}", name, *work) for name, work in works().items()]


def matrix(ctx, check_id):
    """Return C12.matrix.cpu and C12.matrix.io over every option; nothing in the quick tier."""
    if ctx.tier == "quick":
        return []
    cpus = hostfacts.cpus()["effective"]
    unit = min(WORKER_CAP, hostfacts.whole_cpus(cpus))
    cells = loader_plan.matrix(sorted({0, 1, unit, 2 * unit}), ctx.has_cuda)
    sweep = Sweep(ctx, cpus, cells, MATRIX_S, loader_plan.recommend_all)
    return [sweep.run(f"{check_id}.matrix.{name}", name, *work) for name, work in works().items()]


def works():
    """Return the two workloads by name, each (batch size, fewest samples of an epoch, builder of the data set)."""
    return {
        "cpu": (8, 96, lambda length, factor=1: loaders.Decoding(length, blocks=2 * factor)),
        "io": (4, 48, lambda length, factor=1: loaders.Slow(length, SLEEP_S * factor)),
    }


class Sweep:
    """Cells to measure (num_workers, persistent_workers, pin_memory, prefetch_factor), and how to choose from them.

    No cell begins that would not end within ``limit_s`` seconds if it took as long as the slowest so far: on a busy
    machine fewer are measured, and what is left out is named.
    """

    def __init__(self, ctx, cpus, cells, limit_s, choose):
        self.ctx = ctx
        self.cpus = cpus
        self.cells = cells
        self.limit_s = limit_s
        self.choose = choose

    def run(self, check_id, name, batch, fewest, build):
        """Measure one workload."""
        ctx = self.ctx
        length = max(fewest, 2 * batch * max(cell[0] for cell in self.cells))
        before = noise.quiet_window(QUIET_S)
        begin = time.monotonic()
        cells, left_out, slowest = [], [], 0.0
        for cell in self.cells:
            start = time.monotonic()
            if len(cells) >= CERTAIN and start + slowest - begin > self.limit_s:
                left_out.append(dict(zip(loader_plan.AXES, cell)))  # noqa: B905 - strict= came after Python 3.8
                continue
            # Without workers the rate does not depend on the length, and a long epoch would only take time.
            cells.append(_cell(ctx, build(length if cell[0] else fewest), batch, cell))
            slowest = max(slowest, time.monotonic() - start)
        after = noise.quiet_window(QUIET_S)
        chosen = self.choose(cells)
        observed = {
            "workload": name,
            "batch": batch,
            "effective_cpus": self.cpus,
            "cells": cells,
            "cells_left_out": left_out,
            "recommended": {key: chosen[key] for key in loader_plan.AXES},
            "samples_per_s": chosen["samples_per_s"],
            "best_workers_over_none": loader_plan.gain(cells),
            "effects": loader_plan.effects(cells),
            "declared_num_workers": (ctx.wants("loader") or {}).get("num_workers"),
        }
        return ran(
            check_id,
            ctx.subject,
            observed,
            [_work_control(ctx, build), _choice_control()],
            samples=timing.sample_record(chosen["epochs_ms"], clock=_clock_name(ctx), warmup_discarded=1),
            stats=timing.statistics(chosen["epochs_ms"]),
            noise=before if before["gate"] != "clean" else after,
        )


def _cell(ctx, data, batch, cell):
    """Run epochs of one setting; the first is thrown away, its wait for the first batch is kept."""
    num_workers, persistent, pin, prefetch = cell
    options = {"batch_size": batch, "num_workers": num_workers, "pin_memory": pin}
    if num_workers:
        options["persistent_workers"] = persistent
        options["prefetch_factor"] = prefetch or loader_plan.PREFETCHES[0]
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
    """Read all batches and bring each to the device; (milliseconds in all, milliseconds to the first batch)."""
    first = None
    begin = time.perf_counter()
    with loaders.quiet():
        iterator = iter(loader)
    for _, images, _ in iterator:
        images.to(ctx.device, non_blocking=True)
        if ctx.has_cuda:
            ctx.torch.cuda.synchronize()
        if first is None:
            first = (time.perf_counter() - begin) * 1e3
    return (time.perf_counter() - begin) * 1e3, first


def _clock_name(ctx):
    return "perf_counter+sync" if ctx.has_cuda else "perf_counter"


def _work_control(ctx, build):
    """Control: samples that cost twice as much take visibly longer to read.

    Other work on the machine only adds time, so the fastest of both sides come close to the truth with every round,
    and the sides take turns. Rounds end when the difference shows.
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
    """Control: where workers gain nothing, none are recommended."""
    flat = [
        {"num_workers": count, "persistent_workers": False, "pin_memory": False, "samples_per_s": rate}
        for count, rate in ((0, 100.0), (2, 101.0), (4, 99.0))
    ]
    return control("no_gain_recommends_no_workers", loader_plan.recommend(flat)["num_workers"] == 0)
