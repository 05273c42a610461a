"""C23: where does the time of a training step go? Computed from three timings. It informs and never gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import by_part, mapping, number, optional_number, part_of, text
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_SWEEP = "Find the loader's best settings on this machine: `envkit verify IMAGE --tier standard --only C12`."
_ADVICE = {
    "data": (
        "The loader alone is slower than the device: more num_workers, or cheaper decoding and augmentation.",
        _SWEEP,
    ),
    "overlap": ("The loader alone is fast enough and the job still waits: use num_workers > 0.", _SWEEP),
    "contention": (
        "The loader's workers take CPU time from training: fewer workers or threads, or more CPUs.",
        "Compare threads with CPUs: `envkit verify IMAGE --only C08`.",
    ),
    "copy": (
        "Set pin_memory=True, copy with non_blocking=True, and prefetch the next batch on a stream of its own.",
        "Send images as bytes and convert them on the device: a quarter of the volume of float32.",
    ),
    "launch": ("The host queues kernels more slowly than they run: larger batches, torch.compile, or CUDA graphs.",),
}
_WORDS = {
    "data": "the loader is the bottleneck",
    "overlap": "loading does not overlap with training",
    "contention": "the loader's workers slow training down",
    "copy": "copies to the device are the bottleneck",
    "launch": "kernel launches are the bottleneck",
    "compute": "computing is the bottleneck, as it should be",
}
BOTTLENECKS = tuple(_WORDS)
_CODES = {
    "data": "DATA_BOUND",
    "overlap": "LOADING_NOT_OVERLAPPED",
    "contention": "LOADER_TAKES_CPU",
    "copy": "COPY_BOUND",
    "launch": "LAUNCH_BOUND",
}


_OPTIONS = {
    "optimizer": ("AdamW", "optimizer", "Pass {0}=True to torch.optim.AdamW: its step is {1:.2f} times as fast."),
    "channels_last": (
        "a convolutional network",
        "memory format",
        "Use model.to(memory_format=torch.channels_last), and the same for its inputs: {1:.2f} times as fast.",
    ),
    "attention": (
        "scaled dot product attention",
        "backend",
        "Select it with torch.nn.attention.sdpa_kernel: {0} is {1:.2f} times as fast as what torch uses by default.",
    ),
}
_UNFUSED = ("Attention kernels that do not store the whole matrix are missing or refused here: the record says why.",)
_OTHER_RESULT = ("Look at C05, C06 and C14 of this record: one of them shows which computation is wrong.",)


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C23.training, and the options of a training step, which only inform."""
    return by_part({"training": _training, **dict.fromkeys(_OPTIONS, _option)}, observation, spec, env)


def _option(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge the form that torch uses by default, and the gain of the others."""
    observed, part = mapping(observation, "observed"), part_of(observation)
    what, kind, advice = _OPTIONS[part]
    row = thresholds.load().row("C23.options")
    rule = row.record(type="informs")
    gains, default, base = mapping(observed, "speed_up"), observed.get("default"), text(observed, "base")
    speed = {name: number(gains, name) for name in gains}
    default_speed = speed.get(str(default), speed[base])
    best = max(speed, key=speed.__getitem__)
    metric = {"name": f"{part}_gain", "value": speed[best] / default_speed, "unit": "1", "better": "lower"}
    derived = {"default": default, "best": best, "speed_up": speed}
    listed = ", ".join(f"{name} {gain:.2f}x" for name, gain in speed.items() if name != base)
    message = f"{what}: torch uses {default or 'an unknown ' + kind}; over {base}: {listed or 'no other'}"
    differences = mapping(observed, "largest_difference")
    wrong = [name for name in differences if number(differences, name) > number(observed, "line")]
    if wrong:
        mismatch = f"{what}: different result with {', '.join(wrong)}"
        return Finding(Verdict.FAIL, mismatch, "OPTION_CHANGES_RESULT", _OTHER_RESULT, rule, metric, derived)
    refused = mapping(observed, "refused")
    if refused:
        message = f"{message}; not available: {', '.join(sorted(refused))}"
    if part == "attention" and default == "math" and observation["subject"] != "cpu":
        return Finding(Verdict.WARN, message, "ATTENTION_UNFUSED", _UNFUSED, rule, metric, derived)
    gain = speed[best] / default_speed
    lines = (advice.format(best, gain),) if gain > row.number("worth") else ()
    return Finding(Verdict.PASS, message, None, lines, rule, metric, derived)


def _training(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge C23.training. ``derived["bottleneck"]`` names the bottleneck; "compute" is the healthy one."""
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C23.starved")
    rule = row.record()
    first, last = number(observed, "loss_first"), number(observed, "loss_last")
    full, without = number(observed, "step_s"), number(observed, "step_without_loader_s")
    starved = starved_share(full, without)
    limiter = bottleneck(observed, starved)
    metric = {"name": "starved_share", "value": starved, "unit": "1", "better": "lower"}
    parts = {part: number(observed, f"{part}_s") / full for part in ("data_wait", "h2d", "compute")}
    derived = {"bottleneck": limiter, "starved_share": starved, "shares": parts}
    shares = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in parts.items())
    message = f"{_WORDS[limiter]}: starved {starved:.0%} of {full * 1e3:.1f} ms a step ({shares})"
    if not last < first:
        message = f"the loss does not fall: {first:.3f} at first, {last:.3f} at last"
        advice = ("Look at C05, C06 and C14 of this record: one of them shows which computation is wrong.",)
        rule = row.record(type="informs")
        return Finding(Verdict.FAIL, message, "LOSS_DOES_NOT_FALL", advice, rule, metric, derived)
    settings = observed.get("loader")
    chosen = isinstance(settings, dict) and settings.get("declared_num_workers") is None
    if limiter in ("data", "contention") and (observation["subject"] == "cpu" or chosen):
        # On a CPU, loader and training share one processor. If the image declares no loader, the one chosen for it
        # decodes more slowly than a fast GPU trains. Neither says anything about the image.
        return Finding(Verdict.PASS, message, None, (_SWEEP,), rule, metric, derived)
    if limiter != "compute":
        return Finding(Verdict.WARN, message, _CODES[limiter], _ADVICE[limiter], rule, metric, derived)
    return Finding(Verdict.PASS, message, None, (), rule, metric, derived)


def starved_share(full: float, without: float) -> float:
    """Return the share of a step lost to the loader: 1 - time without it / time with it, at least 0."""
    return max(0.0, 1.0 - without / full) if full > 0 else 0.0


def bottleneck(observed: Mapping[str, Any], starved: float) -> str:
    """Return what limits the job.

    A starved job is data-bound if its loader alone is slower than training alone. Otherwise, if the step waits for
    data, the two do not overlap; if it does not wait, loading slows the rest of the step down.
    """
    row = thresholds.load().row("C23.starved")
    full, without = number(observed, "step_s"), number(observed, "step_without_loader_s")
    if starved > row.number("warn_above"):
        if number(observed, "loader_alone_s") > without:
            return "data"
        return "overlap" if number(observed, "data_wait_s") > starved * full / 2 else "contention"
    if number(observed, "h2d_s") > row.number("copy_above") * full:
        return "copy"
    launch = optional_number(observed, "launch_share")
    return "launch" if launch is not None and launch > row.number("launch_above") else "compute"
