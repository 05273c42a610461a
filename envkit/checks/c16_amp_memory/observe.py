"""C16: memory kept by a step in mixed precision, from few samples, when copies of the weights dominate, to many."""

import time

from envkit.smoke import compat, timing
from envkit.smoke.observation import control, ran, skipped

WIDTH_IN, WIDTH, CLASSES = 256, 1024, 10
BATCHES = (8, 512, 8192)
# A CPU without instructions for the dtype needs long for the largest batch. That batch is left out if the one before
# predicts more seconds of CPU time than this.
SLOW_S = 6.0


def run(ctx):
    """Return C16.batch8, batch512 and batch8192: bytes saved for backward, and on a GPU the peak of a step."""
    with timing.single_thread(ctx.seeded()):
        return _run(ctx)


def _run(ctx):
    torch = ctx.torch
    native = compat.bf16_native(torch, ctx.device)
    name = "bfloat16" if native else "float16"
    model = _model(torch).to(ctx.device)
    results, expected = [], 0.0
    for batch in BATCHES:
        check_id = f"C16.batch{batch}"
        if ctx.device == "cpu" and batch == BATCHES[-1] and expected > SLOW_S:
            message = f"this CPU needs about {expected:.1f} s for it in {name}"
            results.append(skipped(check_id, ctx.subject, "TOO_SLOW", message))
            continue
        begin = time.process_time()  # CPU time, because other work on the machine does not make this CPU slow
        try:
            results.append(_compare(ctx, check_id, model, batch, getattr(torch, name)))
        except NotImplementedError as error:
            results.append(skipped(check_id, ctx.subject, "API_ABSENT", str(error)))
        expected = (time.process_time() - begin) * BATCHES[-1] / batch
    return results


def _compare(ctx, check_id, model, batch, dtype):
    torch = ctx.torch
    inputs = torch.randn(batch, WIDTH_IN, device=ctx.device)
    targets = torch.arange(batch, device=ctx.device) % CLASSES

    def context(lowered):
        return compat.autocast(torch, ctx.device, dtype, enabled=lowered)

    saved = {lowered: _saved(torch, model, inputs, targets, context(lowered)) for lowered in (False, True)}
    disabled = _saved(torch, model, inputs, targets, context(False))
    peak = {lowered: _peak(ctx, model, inputs, targets, context(lowered)) for lowered in (False, True)}
    observed = {
        "batch": batch,
        "network": [WIDTH_IN, WIDTH, WIDTH, CLASSES],
        "dtype": str(dtype).replace("torch.", ""),
        "saved_bytes_fp32": saved[False],
        "saved_bytes_amp": saved[True],
        "saved_ratio": saved[True] / saved[False],
        "peak_bytes_fp32": peak[False],
        "peak_bytes_amp": peak[True],
        "weight_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "largest": batch == BATCHES[-1],
    }
    detail = f"{disabled} bytes saved with autocast disabled, {saved[False]} in float32"
    controls = [control("disabled_autocast_saves_nothing", disabled == saved[False], detail)]
    return ran(check_id, ctx.subject, observed, controls)


def _model(torch):
    nn = torch.nn
    layers = [nn.Linear(WIDTH_IN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)]
    return nn.Sequential(*layers)


def _saved(torch, model, inputs, targets, context):
    """Return the bytes newly kept for backward: each buffer counts once, parameters and inputs do not count."""
    known = {tensor.data_ptr() for tensor in (*model.parameters(), inputs, targets)}
    sizes = {}

    def keep(tensor):
        if tensor.data_ptr() not in known:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with compat.saved_tensors_hooks(torch, keep, lambda tensor: tensor), context:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    del loss
    return sum(sizes.values())


def _peak(ctx, model, inputs, targets, context):
    """Return the peak of a step above what was allocated before it; None on a CPU. The first of two steps warms up."""
    if not ctx.has_cuda:
        return None
    torch = ctx.torch
    peak = 0
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        with context:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - base
        del loss
    model.zero_grad(set_to_none=True)
    return peak
