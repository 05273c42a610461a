"""The mixed-precision benchmark: step time, memory, loss and gradient error of each precision, relative to float32."""

import contextlib

from . import amp, compat, hostfacts, noise, timing, workloads
from .observation import control, ran, skipped

# CPU flags of fast bfloat16, as /proc/cpuinfo spells them on x86 and Arm.
CPU_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
# Seconds of sampling per network; `timing` takes its 20 samples if they fit.
CPU_BUDGET_S = 0.4
GPU_BUDGET_S = 1.5
WARMUP_CAP_S = 0.2


def run(ctx, check_id):
    """Return one observation per network and precision."""
    results = []
    for name in networks(ctx):
        results.extend(_network(ctx, check_id, name))
    return results


def networks(ctx):
    """Return the networks to time. On a GPU the quick tier has time for only one, except in comparisons of launches."""
    if ctx.has_cuda and ctx.tier == "quick" and not ctx.spec.get("launch"):
        return workloads.NAMES[-1:]
    return workloads.NAMES


def kinds(ctx):
    """Return [(precision, None or (skip code, message))] in the order of measurement."""
    if not ctx.has_cuda:
        no_tf32 = ("NO_TF32", "TF32 exists on NVIDIA GPUs of compute capability 8.0 and newer; this is a CPU")
        no_fp16 = ("NO_FP16_UNITS", "a CPU has no fast float16 training: its step time says nothing about a GPU")
        no_bf16 = None
        if not cpu_bf16(hostfacts.read_text("/proc/cpuinfo")):
            no_bf16 = ("NO_BF16_UNITS", "this CPU has no bfloat16 instructions: its step time says nothing")
        return [("fp32", None), ("tf32", no_tf32), ("fp16", no_fp16), ("bf16", no_bf16)]
    capability = compat.capability(ctx.torch, ctx.device)
    words = "compute capability {}.{}".format(*capability)
    old = None if capability >= (8, 0) else words
    return [
        ("fp32", None),
        ("tf32", old and ("NO_TF32", words + " has no TF32; it begins with 8.0")),
        ("fp16", None),
        ("bf16", old and ("NO_BF16", words + " only emulates bfloat16; it begins with 8.0")),
    ]


def cpu_bf16(cpuinfo):
    """Whether the text of /proc/cpuinfo names bfloat16 instructions."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return any(flag in value.split() for flag in CPU_BF16_FLAGS)
    return False


def _network(ctx, check_id, name):
    size = "large" if ctx.has_cuda else "medium"
    steppers, results = {}, []
    for kind, skip in kinds(ctx):
        if skip is None:
            try:
                steppers[kind] = amp.Stepper(ctx, name, size, ctx.seed, kind)
                steppers[kind].loss()
                continue
            except NotImplementedError as error:
                steppers.pop(kind, None)
                skip = ("API_ABSENT", str(error))
        results.append(skipped(f"{check_id}.bench.{name}.{kind}", ctx.subject, *skip))
    reference = steppers["fp32"].gradient()
    errors, memory = {}, {}
    for kind, stepper in steppers.items():
        with _settings(ctx, kind):
            errors[kind] = amp.compare(reference, reference if kind == "fp32" else stepper.gradient())
            memory[kind] = _memory(ctx, stepper)
    measured, gate = _time(ctx, steppers)
    for kind in steppers:
        observed = {
            "network": name,
            "shape": list(workloads.SIZES[size][name]),
            "precision": kind,
            "threads": ctx.torch.get_num_threads(),
            "step_ms": measured[kind]["stats"]["median"],
            "time_ratio_to_fp32": measured[kind]["stats"]["median"] / measured["fp32"]["stats"]["median"],
            **memory[kind],
            **errors[kind],
        }
        results.append(
            ran(
                f"{check_id}.bench.{name}.{kind}",
                ctx.subject,
                observed,
                [_clock_control(measured)],
                samples=measured[kind]["samples"],
                stats=measured[kind]["stats"],
                noise=gate,
            )
        )
    return results


def _settings(ctx, kind):
    """Return the context for one precision: TF32 is on for "tf32" alone; the others keep the caller's settings."""
    return compat.fp32_precision(ctx.torch, "tf32", "tf32") if kind == "tf32" else contextlib.nullcontext()


def _memory(ctx, stepper):
    """Return ``{peak_bytes, saved_bytes}`` of one step.

    ``peak_bytes`` is the peak above the network's own memory, None on a CPU; ``saved_bytes`` is kept for backward.
    """
    torch = ctx.torch
    memory = {"peak_bytes": None, "saved_bytes": amp.saved_bytes(stepper)}
    stepper.step()
    if ctx.has_cuda:
        stepper.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        stepper.step()
        torch.cuda.synchronize()
        memory["peak_bytes"] = torch.cuda.max_memory_allocated() - base
    return memory


def _time(ctx, steppers):
    """Time one step of every precision, interleaved with two steps of float32, which are the control of the clock."""
    torch = ctx.torch

    def stepping(kind, stepper):
        def step():
            with _settings(ctx, kind):
                stepper.step()

        return step

    variants = [(kind, stepping(kind, stepper)) for kind, stepper in steppers.items()]

    def twice():
        steppers["fp32"].step()
        steppers["fp32"].step()

    variants.append(("fp32_twice", twice))
    clock = timing.wall_clock(torch.cuda.synchronize if ctx.has_cuda else None)
    before = noise.snapshot(gpu=ctx.has_cuda, idle=True)
    budget = GPU_BUDGET_S if ctx.has_cuda else CPU_BUDGET_S
    measured = timing.measure(variants, clock, warmup_cap_s=WARMUP_CAP_S, budget_s=budget)
    return measured, noise.gate(before, noise.snapshot(gpu=ctx.has_cuda))


def _clock_control(measured):
    """Return the control that two steps take longer than one. A clock that stops too early shows no difference."""
    ratio = measured["fp32_twice"]["stats"]["median"] / measured["fp32"]["stats"]["median"]
    return control("two_steps_take_longer", ratio > 1.3, f"two steps take {ratio:.2f} times one")
