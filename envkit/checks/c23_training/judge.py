"""C23: where does the time of a training step go? Computed from three timings. It informs and never gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import number

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

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
_FAILS = (
    "Call torch.backends.cuda.enable_cudnn_sdp(False), or select another backend with torch.nn.attention.sdpa_kernel.",
)
_UNFUSED = "Attention kernels that do not store the whole matrix are missing or refused here: the record says why."
_WRONG = "Look at C05, C06 and C14 of this record: one of them shows which computation is wrong."


def judge(case: Case) -> Finding:
    """Judge C23.training, and the options of a training step, which only inform."""
    return case.by_part({"training": _training, **dict.fromkeys(_OPTIONS, _option)})


def _option(case: Case) -> Finding:
    """Judge the form that torch uses by default, and the gain of the others."""
    what, kind, advice = _OPTIONS[case.part]
    case.use("C23.options", type="informs")
    gains, default, base = case.mapping("speed_up"), case.observed.get("default"), case.text("base")
    speed = {name: number(gains, name) for name in gains}
    best = max(speed, key=speed.__getitem__)
    # A default that torch does not name, or that cannot run, has no time to compare with.
    gain = speed[best] / speed[default] if isinstance(default, str) and default in speed else None
    if gain is not None:
        case.metric(f"{case.part}_gain", gain, "1", "lower")
    case.derive(default=default, best=best, speed_up=speed)
    listed = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in speed.items() if name != base)
    message = f"{what}: torch uses {default or 'an unknown ' + kind}; over {base}: {listed or 'no other'}"
    differences = case.mapping("largest_difference")
    wrong = [name for name in differences if number(differences, name) > case.value("line")]
    if wrong:
        return case.fail("OPTION_CHANGES_RESULT", f"{what}: different result with {', '.join(wrong)}", _WRONG)
    refused = case.mapping("refused")
    if refused:
        message = f"{message}; not available: {', '.join(sorted(refused))}"
    error = case.observed.get("default_error")
    if error is not None:
        return case.warn("ATTENTION_FAILS", f"{message}; as torch chooses by itself it fails: {error}", *_FAILS)
    if case.part == "attention" and default == "math" and case.subject != "cpu":
        return case.warn("ATTENTION_UNFUSED", message, _UNFUSED)
    if gain is not None and gain > case.number("worth"):
        return case.passed(message, advice.format(best, gain))
    return case.passed(message)


def _training(case: Case) -> Finding:
    """Judge C23.training. ``derived["bottleneck"]`` names the bottleneck; "compute" is the healthy one."""
    case.use("C23.starved")
    first, last = case.value("loss_first"), case.value("loss_last")
    full, without = case.value("step_s"), case.value("step_without_loader_s")
    starved = max(0.0, 1.0 - without / full) if full > 0 else 0.0  # the share of a step lost to the loader
    limiter = _bottleneck(case, starved)
    case.metric("starved_share", starved, "1", "lower")
    parts = {part: case.value(f"{part}_s") / full for part in ("data_wait", "h2d", "compute")}
    case.derive(bottleneck=limiter, starved_share=starved, shares=parts)
    if not last < first:
        case.amend(type="informs")
        return case.fail(
            "LOSS_DOES_NOT_FALL", f"the loss does not fall: {first:.3f} at first, {last:.3f} at last", _WRONG
        )
    shares = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in parts.items())
    message = f"{_WORDS[limiter]}: starved {starved:.0%} of {full * 1e3:.1f} ms a step ({shares})"
    settings = case.observed.get("loader")
    chosen = isinstance(settings, dict) and settings.get("declared_num_workers") is None
    if limiter in ("data", "contention") and (case.subject == "cpu" or chosen):
        # On a CPU, loader and training share one processor. If the image declares no loader, the one chosen for it
        # decodes more slowly than a fast GPU trains. Neither says anything about the image.
        return case.passed(message, _SWEEP)
    if limiter != "compute":
        return case.warn(_CODES[limiter], message, *_ADVICE[limiter])
    return case.passed(message)


def _bottleneck(case: Case, starved: float) -> str:
    """Return what limits the job.

    A starved job is data-bound if its loader alone is slower than training alone. Otherwise, if the step waits for
    data, the two do not overlap; if it does not wait, loading slows the rest of the step down.
    """
    full, without = case.value("step_s"), case.value("step_without_loader_s")
    if starved > case.number("warn_above"):
        if case.value("loader_alone_s") > without:
            return "data"
        return "overlap" if case.value("data_wait_s") > starved * full / 2 else "contention"
    if case.value("h2d_s") > case.number("copy_above") * full:
        return "copy"
    launch = case.optional("launch_share")
    return "launch" if launch is not None and launch > case.number("launch_above") else "compute"
