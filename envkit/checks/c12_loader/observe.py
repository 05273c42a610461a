"""C12: does the DataLoader deliver every sample once, in order and intact, or else raise? Then its throughput."""

import time

from envkit.smoke import loader_bench, loaders, timing
from envkit.smoke.observation import control, ran, skipped

SAMPLES, BATCH, WORKERS = 64, 8, 2
FAULT_AT = 37  # in the middle of a batch
HANG_S, TIMEOUT_S, PATIENT_S = 1.2, 0.4, 30


def run(ctx):
    """Yield order, exception, timeout, pinned and throughput, from the standard tier on for a matrix of settings."""
    with timing.single_thread(ctx.seeded()):
        yield _order(ctx, 0)
        yield _order(ctx, WORKERS)
        yield _exception(ctx)
        yield _timeout(ctx)
        yield _pinned(ctx)
        yield from loader_bench.run(ctx)


def _order(ctx, workers):
    """Read numbered samples. The controls are a sampler that repeats a sample, and a batch with a changed element."""
    torch = ctx.torch
    data = loaders.Numbered(SAMPLES)
    good = list(loaders.batches(torch, data, batch_size=BATCH, num_workers=workers))
    faults = loaders.faults(good, SAMPLES)
    indices = list(range(SAMPLES))
    indices[5] = 4
    repeated = list(loaders.batches(torch, data, batch_size=BATCH, num_workers=workers, sampler=indices))
    altered = [(numbers, images.clone(), sums) for numbers, images, sums in good]
    altered[-1][1][3, 7] += 1
    observed = {"num_workers": workers, "samples": SAMPLES, "batch": BATCH, **faults}
    controls = [
        control("repeated_sample_is_noticed", loaders.faults(repeated, SAMPLES)["out_of_place"] == 1),
        control("changed_element_is_noticed", loaders.faults(altered, SAMPLES)["damaged"] == 1),
    ]
    return ran(f"C12.order.nw{workers}", "host", observed, controls)


def _exception(ctx):
    """Check that an exception in a worker arrives in the main process with its type and text."""
    torch = ctx.torch
    caught = _caught(loaders.batches(torch, loaders.Faulty(SAMPLES, FAULT_AT), batch_size=BATCH, num_workers=WORKERS))
    healthy = _caught(loaders.batches(torch, loaders.Faulty(SAMPLES, None), batch_size=BATCH, num_workers=WORKERS))
    observed = {"exception": caught[0], "carries_text": loaders.fault_text(FAULT_AT) in caught[1]}
    detail = f"without the planted fault: {healthy[0]}"
    return ran("C12.exception", "host", observed, [control("no_fault_no_exception", healthy[0] is None, detail)])


def _timeout(ctx):
    """Check that a hanging worker ends in an error within the timeout."""
    torch = ctx.torch
    options = {"batch_size": 1, "num_workers": 1}
    begin = time.monotonic()
    caught = _caught(loaders.batches(torch, loaders.Slow(1, HANG_S), timeout=TIMEOUT_S, **options))
    took = time.monotonic() - begin
    healthy = _caught(loaders.batches(torch, loaders.Slow(1, 0.0), timeout=PATIENT_S, **options))
    observed = {
        "exception": caught[0],
        "timed_out": "timed out" in caught[1],
        "timeout_s": TIMEOUT_S,
        "hang_s": HANG_S,
        "took_s": took,
    }
    detail = f"a worker that does not hang: {healthy[0]}"
    return ran("C12.timeout", "host", observed, [control("no_hang_no_timeout", healthy[0] is None, detail)])


def _caught(batches):
    """Read all batches; return (type name, text) of the exception raised, or (None, "")."""
    try:
        for _ in batches:
            pass
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        loaders.stop(batches)
    return None, ""


def _pinned(ctx):
    torch = ctx.torch
    if not ctx.has_cuda:
        message = "page-locked batches need a CUDA device; without one DataLoader(pin_memory=True) does nothing"
        return skipped("C12.pinned", ctx.subject, "NO_GPU", message)
    data = loaders.Numbered(SAMPLES)
    good = list(loaders.batches(torch, data, batch_size=BATCH, num_workers=WORKERS, pin_memory=True))
    observed = {
        "batches": len(good),
        "pinned_batches": sum(bool(images.is_pinned()) for _, images, _ in good),
        **loaders.faults(good, SAMPLES),
    }
    plain = next(iter(loaders.batches(torch, data, batch_size=BATCH, num_workers=0)))
    controls = [control("unpinned_batch_is_told_apart", not plain[1].is_pinned())]
    return ran("C12.pinned", ctx.subject, observed, controls)
