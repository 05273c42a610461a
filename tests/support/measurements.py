"""Observations as the payload makes them on a machine with GPUs. The payload's own code makes its choices here too."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

from tests.support.judging import observation

bench: Any = import_module("envkit.smoke.loader_bench")
MIB = 1 << 20
CLEAN = {"psi_cpu_some": 0.01, "nr_throttled": 0, "other_gpu_procs": 0, "pstate": ["P0", "P0"], "gate": "clean"}
BUSY = {**CLEAN, "psi_cpu_some": 0.42, "gate": "CPU pressure 0.42 above 0.10"}
HELD = [{"name": "planted_fault_is_noticed", "held": True, "detail": "one byte of 256 MiB changed"}]


def timed(
    median: float, *, spread: float = 0.01, count: int = 20, seed: int = 1, clock: str = "cuda_event", **rest: Any
) -> dict[str, Any]:
    """Return samples around `median` milliseconds with their statistics, on a quiet machine unless `rest` differs."""
    source = random.Random(seed)
    values = [round(median * (1 + spread * abs(source.gauss(0, 1))), 6) for _ in range(count)]
    ordered = sorted(values)
    stats = {"median": ordered[count // 2], "p25": ordered[count // 4], "p75": ordered[3 * count // 4]}
    samples = {"unit": "ms", "n": count, "warmup_discarded": 4, "inner_loops": 4, "bytes": None, "clock": clock}
    return {
        "samples": {**samples, "values": values},
        "stats": {**stats, "min": ordered[0], "max": ordered[-1], "n": count, "rel_iqr": spread},
        "noise": CLEAN,
        "controls": HELD,
        **rest,
    }


def loaders() -> list[dict[str, Any]]:
    """Return C12's throughput and matrix for both workloads. The machine was busy during the slow storage's timing."""
    workers = [0, 1, 8, 16]
    quick = bench.plan([0, 8, 16], has_cuda=True)
    return [
        *(_sweep("throughput", work, quick) for work in ("cpu", "io")),
        *(_sweep("matrix", work, bench.matrix(workers, True)) for work in ("cpu", "io")),
    ]


def _sweep(part: str, workload: str, settings: list[tuple[Any, ...]]) -> dict[str, Any]:
    alone, most = {"cpu": (655.0, 8), "io": (239.0, 16)}[workload]
    cells = []
    for count, persistent, pin, prefetch in settings:
        gain = 1 + min(count, most) * (0.62 if persistent else 0.48)
        rate = round(alone * gain * (0.96 if pin else 1) * (1.02 if prefetch == 4 else 1), 1)
        epoch = 96e3 / rate
        cells.append(
            {
                "num_workers": count,
                "persistent_workers": persistent,
                "pin_memory": pin,
                "prefetch_factor": (prefetch or 2) if count else None,
                "samples_per_s": rate,
                "first_batch_ms": 30.0 + 4 * count,
                "epochs_ms": [epoch, epoch * 1.01],
            }
        )
    chosen = bench.recommend(cells)
    left_out = [dict(zip(bench.AXES, (16, False, True, 4), strict=True))] if part == "matrix" else []
    observed = {
        "workload": workload,
        "batch": 8 if workload == "cpu" else 4,
        "effective_cpus": 16.0,
        "cells": cells,
        "cells_left_out": left_out,
        "recommended": {key: chosen[key] for key in bench.AXES},
        "samples_per_s": chosen["samples_per_s"],
        "best_workers_over_none": bench.gain(cells),
        "effects": bench.effects(cells),
        "declared_num_workers": 4,
    }
    noise = BUSY if workload == "io" else CLEAN
    return observation(
        f"C12.{part}.{workload}",
        "gpu:0",
        observed=observed,
        **timed(98.0, spread=0.2, count=2, noise=noise, clock="perf_counter+sync"),
    )


def training() -> dict[str, Any]:
    """Return C23 of a job that waits for its loader."""
    observed = {
        "loader": {"num_workers": 4, "prefetch_factor": 2, "pin_memory": True, "declared_num_workers": 4},
        "batch": 64,
        "precision": "bf16",
        "threads": 1,
        "rounds": 6,
        "steps_per_round": 8,
        "first_batch_s": 0.31,
        "step_s": 0.0412,
        "step_without_loader_s": 0.0267,
        "loader_alone_s": 0.0395,
        "data_wait_s": 0.0131,
        "h2d_s": 0.0021,
        "compute_s": 0.0258,
        "starved_share": 0.352,
        "launch_share": 0.1,
        "waits_ms": [13.1, 12.9],
        "loss_first": 2.31,
        "loss_last": 1.44,
    }
    return observation("C23.training", "gpu:0", observed=observed, **timed(41.2, spread=0.05, count=6, seed=23))


def overlap() -> dict[str, Any]:
    """Return C11 with nearly complete overlap of a copy of 256 MiB and kernels."""
    observed = {
        "bytes": 256 * MIB,
        "kernels": 15,
        "times_ms": {
            "copy": 4.86,
            "compute": 4.95,
            "both": 5.05,
            "same_stream": 9.83,
            "copy_pageable": 14.8,
            "both_pageable": 19.7,
        },
        "overlap": {"pinned": 0.979, "same_stream": -0.004, "pageable": 0.01},
        "host_return_ms": 0.012,
        "exact": True,
        "cc_mode": False,
        "connections": None,
    }
    return observation("C11.overlap", "gpu:0", observed=observed, **timed(5.05, count=12, seed=11))


def compiler() -> dict[str, Any]:
    """Return C18 with two kernels compiled by Inductor."""
    observed = {
        "promise": "optional",
        "compilers": {"g++": "/usr/bin/g++"},
        "environment": {},
        "outcome": "answered",
        "wall_s": 21.4,
        "error": None,
        "cold_s": 8.31,
        "warm_ms": 0.071,
        "eager_ms": 0.128,
        "kernels": {".cubin": 2, ".ptx": 2, ".ttir": 2},
        "result_error": 3.1e-7,
    }
    return observation("C18.inductor", "gpu:0", observed=observed, controls=HELD)


def collectives() -> list[dict[str, Any]]:
    """Return C20 for two processes on the CPU and for eight GPUs."""
    observations = []
    for backend, ranks, subject in (("gloo", 2, "cpu"), ("nccl", 8, "gpu:0")):
        common = {
            "backend": backend,
            "ranks": ranks,
            "outcome": "answered",
            "error": None,
            "rank": None,
            "begun": ranks,
            "limit_s": 70.0,
            "limit_wanted_s": 70.0,
            "replaced": {},
            "environment": {},
            "wall_s": 4.2,
        }
        reduced = {**common, "wrong": {"4": 0, "65536": 0, "1048576": 0, "16777216": 0}, "init_s": 0.4}
        shared = {**common, "difference": 2.2e-16}
        observations += [
            observation(f"C20.allreduce.{backend}", subject, observed=reduced, controls=HELD),
            observation(f"C20.ddp.{backend}", subject, observed=shared, controls=HELD),
        ]
    rates = {
        "ranks": 8,
        "bytes": 512 * MIB,
        "algbw_gb_per_s": 270.0,
        "busbw_gb_per_s": 472.5,
        "nccl": [2, 26, 2],
        "peer_access": True,
    }
    return [*observations, observation("C20.bandwidth.nccl", "gpu:0", observed=rates, **timed(1.99, seed=20))]


def decoders() -> list[dict[str, Any]]:
    """Return C21 with three decoders and one that is not installed."""
    observations = []
    for name, width, height, times in (
        ("small", 500, 375, {"pillow": 2.1, "simplejpeg": 1.3, "torchvision": 1.9}),
        ("large", 1920, 1080, {"pillow": 21.0, "simplejpeg": 12.4, "torchvision": 19.2}),
    ):
        observed = {
            "width": width,
            "height": height,
            "bytes": width * height // 4,
            "turbo": True,
            "decode_ms": times,
            "speed_up": {decoder: times["pillow"] / took for decoder, took in times.items()},
            "largest_difference": {"pillow": 0, "simplejpeg": 0, "torchvision": 1},
            "mean_error": dict.fromkeys(("pillow", "simplejpeg", "torchvision"), 4.0),
            "transform_ms": 1.1,
            "decode_share": times["pillow"] / (times["pillow"] + 1.1),
            "starved_share": None,
            "batches": {},
            "absent": ["opencv"],
            "broken": {},
        }
        timing = timed(times["pillow"], count=9, seed=width)
        observations.append(observation(f"C21.{name}", observed=observed, **timing))
    return observations


def storage() -> list[dict[str, Any]]:
    """Return C22 with an overlay that supports direct reads, and a scratch folder in memory."""
    read = {
        "exact": True,
        "filesystem": "overlay",
        "direct": True,
        "bytes": 512 * MIB,
        "reads": 128,
        "unreadable_files": 0,
        "gb_per_s": 2.31,
        "file": "libtorch_cuda.so",
    }
    random_read = {
        "exact": True,
        "filesystem": "overlay",
        "direct": True,
        "bytes": 400 * 4096,
        "reads": 400,
        "unreadable_files": 0,
        "reads_per_s": 11200.0,
        "median_ms": 0.087,
        "p99_ms": 0.21,
    }
    reason = {"code": "IN_MEMORY", "message": "the scratch folder is tmpfs: memory, not storage"}
    return [
        observation("C22.image_read", "host", observed=read, **timed(1.8, count=12, seed=22, noise=None)),
        observation("C22.image_random", "host", observed=random_read, **timed(0.087, count=12, seed=221, noise=None)),
        observation("C22.scratch_write", "host", "skip", reason=reason),
    ]


def sustained() -> list[dict[str, Any]]:
    """Return C24 with a minute of load at a clock that the power limit reduces."""
    load = {
        "seconds": 60.2,
        "products": 40_800,
        "size": 8192,
        "dtype": "bfloat16",
        "different": 0,
        "tflops_first": 771.0,
        "tflops_last": 744.0,
    }
    rows = [
        {
            "sm_mhz": 1980 if index < 20 else 1755 - index % 3 * 15,
            "celsius": min(38 + index // 4, 64),
            "watts": 690.0 + index % 5,
            "events": [] if index < 20 else ["sw_power_cap"],
            "at_s": 0.3 * (index + 1),
        }
        for index in range(200)
    ]
    telemetry = {
        "seconds": 60.4,
        "max_sm_mhz": 1980,
        "rows": rows,
        "xids": [],
        "uncorrected_ecc": 0,
        "pcie_replays": 0,
    }
    return [
        observation("C24.load", "gpu:0", observed=load, **timed(1.47, count=120, seed=24, noise=None)),
        observation("C24.telemetry", "gpu:0", observed=telemetry, controls=HELD),
    ]
