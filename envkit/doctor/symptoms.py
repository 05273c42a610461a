"""Explain five symptoms that GPU monitors show, using the timings of check C23 instead of the monitor's numbers.

C23 times a step with its loader (`full`), the same step with a batch that is already loaded (`without`), and the
loader alone (`alone`). The share of a step lost to the loader is `1 - without / full`. This machine's loader can feed
`without / alone` devices. To keep up, loading needs at most workers x alone / without CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envkit.checks import thresholds
from envkit.doctor.model import Evidence, Finding, Severity
from envkit.doctor.trees import items, mapping, number

SOURCES = (
    "https://docs.pytorch.org/docs/stable/generated/torch.cuda.utilization.html",
    "https://docs.pytorch.org/docs/stable/notes/cuda.html",
    "stas00/ml-engineering",
)
_SHORTEST_S = 1e-9  # the resolution of the clock
_SWEEP = "envkit verify IMAGE --tier standard --only C12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The timings of C23 in seconds per step or batch, and related values of the record."""

    full: float
    without: float
    alone: float
    wait: float
    copy: float
    launch: float | None  # share of a step
    workers: int
    threads: int | None
    effective_cpus: float | None
    gpus: int
    starved_above: float  # C23's threshold for a starved job, as a share of a step
    launch_above: float  # C23's threshold for a launch-bound job, as a share of a step
    busbw: float | None = None  # GB/s, from C20
    throttled: bool = False

    @property
    def starved(self) -> float:
        """The share of a step lost to the loader."""
        return max(0.0, 1 - self.without / self.full)

    @property
    def is_starved(self) -> bool:
        """Whether the loader costs more than C23's threshold."""
        return self.starved > self.starved_above

    @property
    def is_contended(self) -> bool:
        """Whether the loader slows down the rest of the step instead of making it wait."""
        # The loader alone is fast enough, and waiting explains at most half of the loss.
        return self.is_starved and self.alone <= self.without and self.wait <= self.starved * self.full / 2

    @property
    def is_launch_bound(self) -> bool:
        """Whether launching kernels takes more of a step than C23's threshold."""
        return self.launch is not None and self.launch > self.launch_above

    @property
    def margin(self) -> float:
        """How many devices of this speed the loader can feed."""
        return self.without / self.alone

    @property
    def cpus_needed(self) -> float:
        """CPUs that loading needs to keep up with one device, if workers only compute and never wait."""
        return max(1, self.workers) * self.alone / self.without


def read_step(observed: Mapping[str, Any], record: Mapping[str, Any]) -> Step | None:
    """Return the step of a record; None if a timing is missing or is not a positive number."""
    full, without, alone = (
        number(observed.get(f"{name}_s")) for name in ("step", "step_without_loader", "loader_alone")
    )
    if full is None or without is None or alone is None or min(full, without, alone) < _SHORTEST_S:
        return None
    env, loader = mapping(record.get("env")), mapping(observed.get("loader"))
    host, cards = mapping(env.get("host")), items(env.get("gpu"))
    threads = number(observed.get("threads"))
    rule = thresholds.load().row("C23.starved")
    return Step(
        full=full,
        without=without,
        alone=alone,
        wait=number(observed.get("data_wait_s")) or 0.0,
        copy=number(observed.get("h2d_s")) or 0.0,
        launch=number(observed.get("launch_share")),
        workers=int(number(loader.get("num_workers")) or 0),
        threads=None if threads is None else int(threads),
        effective_cpus=number(host.get("effective")),
        gpus=len(cards),
        starved_above=rule.number("warn_above"),
        launch_above=rule.number("launch_above"),
        busbw=_bandwidth(record),
        throttled="CPU_THROTTLED" in _codes(record),
    )


def answers(step: Step) -> tuple[Finding, ...]:
    """Return one finding per symptom: a warning if the record explains it, else a note on what it rules out."""
    return (_sawtooth(step), _full_and_idle(step), _low(step), _scaling(step), _cpu_busy(step))


def _sawtooth(step: Step) -> Finding:
    title = "GPU utilization jumps up and down"
    lost = _evidence(
        f"starved share {step.starved:.0%}: a step takes {_ms(step.full)} with the loader, {_ms(step.without)} without"
    )
    if step.is_starved:
        return _finding(
            "util-sawtooth", Severity.WARN, f"{title}: the loader is the cause", lost,
            _loader_evidence(step),
            cause=_starving(step),
            fix=_loader_fix(step),
        )  # fmt: skip
    return _finding(
        "util-sawtooth", Severity.INFO, f"{title}: the loader is not the cause", lost,
        cause=f"The loader costs at most {step.starved:.0%} of a step, too little for the dips that a monitor shows.",
        check=("Compare the dips with validation, checkpoints, logging and, with several GPUs, the slowest rank.",),
        distinguish=f"Monitors sample every 1/6 to 1 s, and a step takes {_ms(step.full)}: short dips are artifacts.",
    )  # fmt: skip


def _full_and_idle(step: Step) -> Finding:
    title = "GPU memory is full but utilization is low"
    why = "Full memory says nothing about speed: torch keeps freed blocks. What matters is what a step waits for."
    lost = _evidence(
        f"starved share {step.starved:.0%}, launches {_share(step.launch)}, copies {step.copy / step.full:.0%}"
    )
    if step.is_starved:
        return _finding(
            "mem-full-util-low", Severity.WARN, f"{title}: the loader is the cause", lost,
            cause=f"{why} {_starving(step)}", fix=_loader_fix(step),
        )  # fmt: skip
    if step.is_launch_bound:
        return _finding(
            "mem-full-util-low", Severity.WARN, f"{title}: the host launches kernels too slowly", lost,
            cause=f"{why} Here the host needs {step.launch:.0%} of a step to launch its kernels.", fix=_LAUNCH_FIX,
        )  # fmt: skip
    return _finding(
        "mem-full-util-low", Severity.INFO, f"{title}: no reason found in this job", lost, cause=why,
        check=("nvidia-smi --query-compute-apps=pid,used_memory --format=csv   # another process on the GPU?",
               'python -c "import torch; print(torch.cuda.memory_summary())"   # allocated against reserved'),
    )  # fmt: skip


def _low(step: Step) -> Finding:
    title = "GPU utilization is low and memory is free"
    shares = _evidence(
        f"starved {step.starved:.0%}, launches {_share(step.launch)}, copies {step.copy / step.full:.0%}"
    )
    if step.is_starved:
        return _finding(
            "util-low-mem-free", Severity.WARN, f"{title}: fix the loader first", shares,
            cause=f"{_starving(step)} A larger batch does not help.",
            fix=_loader_fix(step),
        )  # fmt: skip
    if step.is_launch_bound:
        return _finding(
            "util-low-mem-free", Severity.WARN, f"{title}: the host launches kernels too slowly", shares,
            cause=f"Launching takes {step.launch:.0%} of a step, so the device idles between small kernels.",
            fix=_LAUNCH_FIX,
        )  # fmt: skip
    unknown = "The launch time of the host was not measured (no GPU). " if step.launch is None else ""
    return _finding(
        "util-low-mem-free", Severity.INFO, f"{title}: loader and launches are not the cause", shares,
        cause=(
            f"{unknown}Remaining causes: a batch that is too small, .item() or print in every step, "
            "unused tensor cores."
        ),
        check=("Double the batch size: if throughput rises by more than 1.5x, it was too small.",
               "envkit verify IMAGE --tier standard --only C15   # tensor cores",
               "torch.profiler: look for cudaStreamSynchronize above 10 %"),
    )  # fmt: skip


def _scaling(step: Step) -> Finding:
    title = "Throughput does not scale with the number of GPUs"
    fed = step.margin
    evidence = [
        _evidence(
            f"the loader needs {_ms(step.alone)} per batch and a device {_ms(step.without)}: the loader "
            f"can feed {fed:.1f} devices"
        )
    ]
    if step.busbw is not None:
        evidence.append(_evidence(f"all_reduce reaches {step.busbw:.1f} GB/s (C20)"))
    # On a machine with one GPU the question is about a second one.
    ranks = max(2, step.gpus)
    ceiling = min(1.0, fed / ranks)
    if ceiling < 1:
        return _finding(
            "scaling-sublinear", Severity.WARN,
            f"{title}: the shared loader allows {ceiling:.0%} efficiency with {ranks} GPUs", *evidence,
            cause=f"All ranks of a machine share its CPUs. They can feed at most {fed:.1f} devices of this speed.",
            fix=(f"For {ranks} GPUs, loading must become {ranks / fed:.1f}x as fast: decode less."  , _SWEEP),
        )  # fmt: skip
    missing = () if step.busbw is not None else ("envkit verify IMAGE --tier standard --only C20   # two GPUs or more",)
    return _finding(
        "scaling-sublinear", Severity.INFO, f"{title}: the loader could feed {fed:.1f} devices", *evidence,
        cause=(
            "Loading is not the limit. Remaining causes: communication, uneven ranks, steps too short to "
            "hide communication."
        ),
        check=(*missing, "nvidia-smi topo -m; NCCL_DEBUG=INFO   # SHM or NET instead of the expected P2P",
               "Compare the step times of the ranks: a spread above 10 % is an imbalance."),
    )  # fmt: skip


def _cpu_busy(step: Step) -> Finding:
    title = "CPUs are busy but the GPU is idle"
    need, have = step.cpus_needed, step.effective_cpus
    has = f"{have:g} CPUs" if have is not None else "an unknown number of CPUs"
    evidence = [_evidence(f"loading needs up to {need:.1f} CPUs to keep up with the device; the container has {has}")]
    if step.throttled or (have is not None and step.threads is not None and step.threads > max(1.0, have)):
        evidence.append(_evidence("C08: the processes have more threads than CPUs, or the quota throttles them"))
    if step.is_contended:
        return _finding(
            "cpu-high-gpu-idle", Severity.WARN, f"{title}: workers and training compete for CPUs", *evidence,
            cause=f"Steps take {step.starved:.0%} longer while workers run, although they hardly wait for data.",
            fix=_loader_fix(step),
        )  # fmt: skip
    if step.is_starved and (have is None or need > have):
        return _finding(
            "cpu-high-gpu-idle", Severity.WARN, f"{title}: preprocessing needs more CPUs than available", *evidence,
            cause=(
                f"With {step.workers} workers, loading a batch takes {_ms(step.alone)} and computing it "
                f"{_ms(step.without)}."
            ),
            fix=_loader_fix(step),
        )  # fmt: skip
    if step.is_starved:
        return _finding(
            "cpu-high-gpu-idle", Severity.WARN, (
                f"{title}: there are enough CPUs, but loading does not "
                "overlap with computing"
            ), *evidence,
            cause=f"The step waits {step.starved:.0%} of its time, although the CPUs could keep up.",
            fix=(f"Use workers (now {step.workers}), persistent_workers=True, and no more threads than CPUs.", _SWEEP),
        )  # fmt: skip
    return _finding(
        "cpu-high-gpu-idle", Severity.INFO, f"{title}: loading is not the cause", *evidence,
        cause="The device hardly waits for data. One busy core is the Python main thread, or a busy-wait loop.",
        check=("py-spy top --pid PID", (
            "In the first minutes it may be torch.compile: look for ptxas and "
            "triton processes."
        )),
    )  # fmt: skip


_LAUNCH_FIX = ("Larger batches, torch.compile(mode='reduce-overhead') or CUDA graphs, fused optimizers.",)


def _starving(step: Step) -> str:
    if step.is_contended:
        return f"Workers take CPU time from the step, which loses {step.starved:.0%} of its time."
    return f"The device waits for data during {step.starved:.0%} of each step and shows 0 % utilization meanwhile."


def _loader_fix(step: Step) -> tuple[str, ...]:
    """Return how to speed up loading, with numbers."""
    if step.is_contended:
        cpus = "an unknown number of" if step.effective_cpus is None else f"{step.effective_cpus:g}"
        return (
            f"Workers take CPU time from training: use fewer than {step.workers} workers, or more than {cpus} CPUs.",
            _SWEEP,
        )
    if step.alone <= step.without:
        speed = f"{_ms(step.alone)} against {_ms(step.without)}"
        ahead = f"let it prefetch with num_workers > 0 (now {step.workers}) and persistent_workers=True"
        return (f"The loader alone is fast enough ({speed}): {ahead}.", _SWEEP)
    factor = step.alone / step.without
    workers = math.ceil(max(1, step.workers) * factor)
    if step.effective_cpus is None or workers <= math.floor(step.effective_cpus):
        change = f"num_workers={workers} or more (now {step.workers})"
    else:
        change = f"{workers} workers are needed, but there are {step.effective_cpus:g} CPUs: decode less or add CPUs"
    return (f"Loading must become {factor:.1f}x as fast: {change}.", _SWEEP)


def _loader_evidence(step: Step) -> Evidence:
    return _evidence(f"the loader alone takes {_ms(step.alone)} per batch with {step.workers} workers")


def _finding(ident: str, severity: Severity, title: str, *evidence: Evidence, **more: Any) -> Finding:
    return Finding(id=ident, severity=severity, title=title, evidence=evidence, sources=SOURCES, **more)


def _evidence(text: str) -> Evidence:
    return Evidence(text=text)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0%}"


def _codes(record: Mapping[str, Any]) -> set[str]:
    return {str(mapping(check).get("reason_code")) for check in items(record.get("checks"))}


def _bandwidth(record: Mapping[str, Any]) -> float | None:
    for check in map(mapping, items(record.get("checks"))):
        bandwidth = number(mapping(check.get("observed")).get("busbw_gb_per_s"))
        if str(check.get("id")).startswith("C20") and bandwidth is not None:
            return bandwidth
    return None
