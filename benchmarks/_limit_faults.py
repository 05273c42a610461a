"""Healthy errors and planted faults of the limits on precision, computed on this machine's CPU."""

# It calls the payload, which has no types.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from envkit.checks.c06_conv import observe as c06
from envkit.checks.c17_no_grad import observe as c17
from envkit.smoke import amp, context, precision, workloads

STEPS = 10
# (row of the thresholds, precision or None, healthy value or None, value of the fault)
Measured = tuple[str, str | None, float | None, float]


def measured(seeds: int) -> Iterator[Measured]:
    """Yield what each seed gives for each limit of C06, C14 and C17 whose fault is planted here."""
    torch.set_num_threads(1)
    ctx = context.Ctx({})
    for seed in range(seeds):
        with amp.strict_fp32(ctx):
            for network in workloads.NAMES:
                for kind in ("fp16", "bf16"):
                    yield from _step(ctx, network, kind, seed)
                down, up = (_progress(ctx, network, seed, maximize=way) for way in (False, True))
                yield "C14.progress", None, down, up
        yield "C17.difference", None, *_answers(seed)
    for seed in range(min(seeds, 10)):
        yield "C06.stride1", "element_over_line", None, _zeroed(seed)


def _step(ctx: Any, network: str, kind: str, seed: int) -> Iterator[Measured]:
    """Yield the errors of one step, beside a softmax without its last class and a gradient without a layer."""
    true, low = (amp.Stepper(ctx, network, "small", seed, name) for name in ("fp32", kind))
    reference, candidate = true.gradient(), low.gradient()
    errors = amp.compare(reference, candidate)
    largest = max(parameter.numel() for parameter in true.model.parameters())
    faulty, begin = candidate[1].clone(), 0
    for parameter in true.model.parameters():
        if parameter.numel() == largest:
            faulty[begin : begin + largest] = 0
        begin += parameter.numel()
    without = amp.compare(reference, (candidate[0], faulty))
    with torch.no_grad():
        logits = true.model(true.inputs).double()
        own = logits.gather(1, true.targets[:, None])[:, 0]
        loss = float((torch.logsumexp(logits[:, :-1], 1) - own).mean())
    yield "C14.loss", kind, errors["loss_rel_err"], abs(loss - reference[0]) / reference[0]
    yield "C14.gradient", kind, errors["grad_rel_l2"], without["grad_rel_l2"]
    yield "C14.direction", None, errors["grad_one_minus_cos"], without["grad_one_minus_cos"]


def _progress(ctx: Any, network: str, seed: int, *, maximize: bool) -> float:
    """Return the last loss over the first of ten steps down the gradient, or up."""
    stepper = amp.Stepper(ctx, network, "small", seed, "fp32")
    for group in stepper.optimizer.param_groups:
        group["maximize"] = maximize
    losses = [float(stepper.step()) for _ in range(STEPS)]
    return losses[-1] / losses[0]


def _answers(seed: int) -> tuple[float, float]:
    """Return how far answers without gradients are off, and how far where weights and inputs are cut to TF32."""
    torch.manual_seed(seed)
    model, images = c17._model(torch), torch.randn(c17.BATCH, 3, 16, 16)  # noqa: SLF001 - the model that the check uses
    reference = model(images).detach()
    with torch.no_grad():
        own = model(images)
        for parameter in model.parameters():
            parameter.copy_(precision.to_tf32(parameter))
        cut = model(precision.to_tf32(images))
    scale = float(reference.abs().max())
    return tuple(float((result - reference).abs().max()) / scale for result in (own, cut))


def _zeroed(seed: int) -> float:
    """Return the least error of one zeroed element of C06's results with stride 1, over the line of bfloat16."""
    from envkit.checks import thresholds  # noqa: PLC0415

    results = c06._problem(torch, seed, 1)[-1].values()  # noqa: SLF001 - the problem that the check uses
    line = thresholds.shipped().row("C06.stride1").number("bf16")
    return min(float(result.abs().median() / result.abs().max()) for result in results) / line
