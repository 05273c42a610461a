"""Invented records of observed trainings: a healthy one, which each test changes in one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envkit.watch.model import Card, Machine, Process, Record, Sample, Total

STEPS, STEP_S = 200, 0.1
H100 = {"name": "NVIDIA H100", "cc": "9.0", "mem_mib": 81920, "max_sm_mhz": 1980, "numa_node": 1}


def total(share: float, count: int = STEPS, amount: float = 0.0, longest_s: float = 0.0) -> Total:
    """Return events that take a share of the time of all steps."""
    return Total(count=count, seconds=share * STEPS * STEP_S, amount=amount, longest_s=longest_s)


def sample(**fields: Any) -> Sample:
    """Return a sample in the middle of the steps."""
    return Sample(
        **{"at_s": 10.0, "seconds": 0.5, "processes": 1, "cpus": 1.0, "main_cpus": 0.5, "main_queued": 0.0} | fields
    )


def card(**fields: Any) -> Card:
    """Return a busy GPU."""
    return Card(**{"index": 0, "util": 95.0, "memory_used": 60 << 30, "sm_mhz": 1980, "gen": 5, "width": 16} | fields)


def process(totals: Mapping[str, Total] | None = None, **fields: Any) -> Process:
    """Return a rank with steps of 100 ms and a loader that is fast enough."""
    base: dict[str, Any] = {
        "pid": 100,
        "parent": 1,
        "program": "train.py",
        "facts": {
            "training": {"device": "cuda", "capability": [9, 0], "threads": 8, "optimizer": "AdamW", "fused": False},
            "loader": {"num_workers": 4, "prefetch_factor": 2, "pin_memory": True, "persistent_workers": True},
        },
        "steps": STEPS,
        "seconds": STEPS * STEP_S,
        "begin_s": 5.0,
        "end_s": 25.0,
        "totals": {"next": total(0.01), "optimizer": total(0.03), "backward": total(0.5)} | dict(totals or {}),
    }
    return Process(**base | fields)


def facts(**groups: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the facts of `process` with changes."""
    base = process().facts
    return {name: {**base.get(name, {}), **groups.get(name, {})} for name in {*base, *groups}}


def gpu_steps(drained: float) -> dict[str, Total]:
    """Return steps on a GPU that was idle at the end of a share of them."""
    return {"step.known": Total(count=STEPS), "step.drained": Total(count=round(drained * STEPS))}


def record(*processes: Process, samples: tuple[Sample, ...] | None = None, **machine: Any) -> Record:
    """Return a record of a machine with 16 CPUs and an H100."""
    base: dict[str, Any] = {"cpus": 16.0, "logical_cpus": 16, "memory_bytes": 64 << 30, "gpus": (H100,)}
    return Record(
        command=("python", "train.py"),
        started="2026-01-01T00:00:00Z",
        seconds=30.0,
        exit_code=0,
        injected=True,
        machine=Machine(**(base | machine)),
        processes=processes or (process(),),
        samples=(sample(gpus=(card(),)),) if samples is None else samples,
        version="0",
    )


def on_cpu(
    totals: Mapping[str, Total] | None = None,
    *,
    threads: int = 2,
    samples: tuple[Sample, ...] | None = None,
    **loader: Any,
) -> Record:
    """Return a record of a training on two CPUs without a GPU."""
    rank = process(totals, facts=facts(training={"device": "cpu", "threads": threads}, loader=loader))
    return record(rank, samples=(sample(cpus=0.5),) if samples is None else samples, cpus=2.0, logical_cpus=2, gpus=())


def short(whole: Record, steps: int, seconds: float) -> Record:
    """Return the record of a run that ended early."""
    return replace(whole, processes=(replace(whole.processes[0], steps=steps, seconds=seconds),))
