"""The loader benchmark: samples per second over num_workers, persistent_workers and pin_memory."""

import time

from . import hostfacts, loader_plan, loaders, noise, timing
from .observation import control, ran

# Workers are swept up to twice this many; beyond it the quick tier would only count process starts.
WORKER_CAP = 8
SLEEP_S = 0.004
TIMED_EPOCHS = 2
# Seconds for the cells of one workload; what does not fit is named in the observation.
SWEEP_S = 3.0
QUIET_S = 0.15


def run(ctx, check_id):
    """Return C12.throughput.cpu (bound by decoding) and C12.throughput.io (bound by waiting)."""
    cpus = hostfacts.cpus()["effective"]
    unit = min(WORKER_CAP, hostfacts.whole_cpus(cpus))
    workers = sorted({0, unit, 2 * unit})
    works = [
        ("cpu", 8, 96, lambda length, factor=1: loaders.Decoding(length, blocks=2 * factor)),
        ("io", 4, 48, lambda length, factor=1: loaders.Slow(length, SLEEP_S * factor)),
    ]
    return [_workload(ctx, check_id, work, workers, cpus) for work in works]


def _workload(ctx, check_id, work, workers, cpus):
    name, batch, fewest, build = work
    length = max(fewest, 2 * batch * max(workers))
    before = noise.quiet_window(QUIET_S)
    begin = time.monotonic()
    cells, left_out = [], []
    for num_workers, persistent, pin in loader_plan.plan(workers, ctx.has_cuda):
        if cells and time.monotonic() - begin > SWEEP_S:
            left_out.append({"num_workers": num_workers, "persistent_workers": persistent, "pin_memory": pin})
            continue
        # Without workers the rate does not depend on the length, and a long epoch would only take time.
        data = build(length if num_workers else fewest)
        cells.append(_cell(ctx, data, batch, num_workers=num_workers, persistent=persistent, pin=pin))
    after = noise.quiet_window(QUIET_S)
    chosen = loader_plan.recommend(cells)
    observed = {
        "workload": name,
        "batch": batch,
        "effective_cpus": cpus,
        "cells": cells,
        "cells_left_out": left_out,
        "recommended": {key: chosen[key] for key in ("num_workers", "persistent_workers", "pin_memory")},
        "samples_per_s": chosen["samples_per_s"],
        "best_workers_over_none": loader_plan.gain(cells),
        "declared_num_workers": (ctx.wants("loader") or {}).get("num_workers"),
    }
    epochs = timing.sample_record(chosen["epochs_ms"], clock=_clock_name(ctx), warmup_discarded=1)
    return ran(
        f"{check_id}.throughput.{name}",
        ctx.subject,
        observed,
        [_work_control(ctx, build), _choice_control()],
        samples=epochs,
        stats=timing.statistics(chosen["epochs_ms"]),
        noise=before if before["gate"] != "clean" else after,
    )


def _cell(ctx, data, batch, *, num_workers, persistent, pin):
    """Run epochs of one setting; the first is thrown away, its wait for the first batch is kept."""
    options = {"batch_size": batch, "num_workers": num_workers, "pin_memory": pin}
    if num_workers:
        options["persistent_workers"] = persistent
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
    """Control: samples that cost twice as much take visibly longer to read."""

    def fastest(factor):
        loader = loaders.loader(ctx.torch, build(8, factor), batch_size=8, num_workers=0)
        return min(_epoch(ctx, loader)[0] for _ in range(3))

    ratio = fastest(2) / fastest(1)
    return control("twice_the_work_is_seen", ratio > 1.4, f"{ratio:.2f} times as long")


def _choice_control():
    """Control: where workers gain nothing, none are recommended."""
    flat = [
        {"num_workers": count, "persistent_workers": False, "pin_memory": False, "samples_per_s": rate}
        for count, rate in ((0, 100.0), (2, 101.0), (4, 99.0))
    ]
    return control("no_gain_recommends_no_workers", loader_plan.recommend(flat)["num_workers"] == 0)
