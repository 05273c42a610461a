"""Records as a verification writes them: prepared observations, judged by the real rules."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from envkit.checks.catalog import CheckEntry, catalog, judges
from envkit.verify.exitcode import summarize
from envkit.verify.judge import check_of, judge
from envkit.verify.record import RunFacts, build_record
from envkit.verify.spec import spec_of_plan
from tests.support.judging import document, observation, plan
from tests.support.measurements import (
    CLEAN,
    HELD,
    MIB,
    collectives,
    compiler,
    decoders,
    loaders,
    overlap,
    storage,
    sustained,
    timed,
    training,
)

LINK = {"gen": 5, "width": 16, "gen_max": 5, "width_max": 16, "busy": True, "c2c": False, "cc_mode": False}
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>]]>&\u202e\x1b[2J|`*_#::error::"
_SHM = {
    "need_bytes": 154_000_000,
    "outcome": "no_space",
    "shm_bytes": 67_108_864,
    "free_bytes": 67_108_864,
    "message": "RuntimeError: unable to allocate shared memory(shm): No space left on device (28)",
}


def gpu_record(*, hostile: str | None = None) -> dict[str, Any]:
    """Return a run on one H200 with data for every figure, a failure, warnings and skips."""
    checks = [
        *_transfers(),
        overlap(),
        *loaders(),
        *_precisions(),
        *_products(),
        compiler(),
        *collectives(),
        *decoders(),
        *storage(),
        training(),
        *sustained(),
        observation("C13.shm", "host", observed=_SHM, controls=HELD),
        observation("C09", "gpu:0", "skip"),
        observation("C17", "cpu", "error", reason={"code": "EXCEPTION", "message": "RuntimeError: out of memory"}),
    ]
    tree = _judged(checks)
    if hostile is not None:
        _poison(tree, hostile)
    return tree


def cpu_record() -> dict[str, Any]:
    """Return a run of two checks without a GPU, which measured nothing."""
    return _judged([observation("C04", "gpu:0", "skip"), observation("C09", "gpu:0", "skip")], cuda=None)


def passed_record(*, warn: bool = False) -> dict[str, Any]:
    """Return a run that verified its image, with or without a warning."""
    return _judged(_transfers() if warn else collectives())


def dead_record() -> dict[str, Any]:
    """Return a run whose payload did not print its document."""
    return _judged(None)


def record_of(
    checks: Sequence[dict[str, Any]], *, timing_trusted: bool = True, gpu: str | None = None
) -> dict[str, Any]:
    """Return a run of a CUDA image with these observations, on a GPU with this name."""
    return _judged(checks, timing_trusted=timing_trusted, gpu=gpu)


def kernel(subject: str = "gpu:0", **changed: Any) -> dict[str, Any]:
    """Return the observation of a kernel that computed the exact result, with fields changed."""
    total, last = 2**48, [33554427, 33554429, 33554431]
    observed = {"outcome": "answered", "text": "{}", "total": total, "expected_total": total, "init_s": 1.5}
    return observation("C04.kernel", subject, observed={**observed, "last": last, "expected_last": last, **changed})


def check(tree: Mapping[str, Any], check_id: str) -> dict[str, Any]:
    """Return one finding of a record."""
    finding: dict[str, Any] = next(item for item in tree["checks"] if item["id"] == check_id)
    return finding


def _judged(
    checks: Sequence[dict[str, Any]] | None,
    *,
    cuda: str | None = "12.6",
    timing_trusted: bool = True,
    gpu: str | None = None,
) -> dict[str, Any]:
    made = plan(cuda=cuda)
    spec = spec_of_plan(made)
    known = {entry.id: entry for entry in catalog()}
    ids = list(dict.fromkeys(check_of(item["id"]) for item in checks)) if checks is not None else ["C04", "C05"]
    entries = [known.get(name) or CheckEntry(name, f"title of {name}", "standard", 1.0, "torch") for name in ids]
    tree = None if checks is None else {**document(*checks), "env": copy.deepcopy(_ENV if cuda else _CPU_ENV)}
    if tree is not None and gpu is not None:
        tree["env"]["gpu"][0]["name"] = gpu
    judged = judge(tree, spec, entries, judges(), trust_timing=timing_trusted)
    run = RunFacts(
        id="5f0c0d3e-0000-4000-8000-000000000000",
        started="2026-01-01T00:00:00Z",
        duration_s=41.2345,
        tier="standard",
        suite_sha256="a" * 64,
        argv=("envkit", "verify", "train:1", "--plan", "plans/train.json"),
        runner="docker",
        gpus="all",
        selected=tuple(ids),
        exit_code=0 if checks is not None else 139,
        stderr_tail=() if checks is not None else ("C05 GEMM", "Segmentation fault"),
        timing_trusted=timing_trusted,
    )
    subject = {
        "image": "registry.example.com/team/train@sha256:" + "c" * 64,
        "id": "sha256:" + "c" * 64,
        "tags": ["registry.example.com/team/train:1"],
        "plan": made.digest,
        "name": "train",
        "architecture": "amd64",
        "size_bytes": 3_217_000_000,
        "promise": None,
    }
    made_record = build_record(
        run=run, subject=subject, spec=spec, document=tree, judged=judged, summary=summarize(judged, spec)
    )
    plain: dict[str, Any] = json.loads(json.dumps(made_record.tree))
    return plain


def _transfers() -> list[dict[str, Any]]:
    rates = {
        "h2d_pinned": {1: 21.0, 16: 48.5, 64: 53.9, 256: 55.2},
        "h2d_pageable": {1: 9.5, 16: 14.8, 64: 17.2, 256: 18.1},
        "d2h_pinned": {1: 19.0, 16: 41.0, 64: 40.2, 256: 38.4},
        "d2h_pageable": {1: 8.0, 16: 10.9, 64: 11.3, 256: 11.0},
    }
    copies = [
        observation(
            f"C10.{name}_{size}MiB",
            "gpu:0",
            observed={"gb_per_s": rate, "link": LINK, "decides": size == 256},
            **timed(size * MIB / rate / 1e6, seed=size, spread=0.12 if "pageable" in name else 0.01),
        )
        for name, by_size in rates.items()
        for size, rate in by_size.items()
    ]
    return [
        *copies,
        observation("C10.link", "gpu:0", observed={"link": {**LINK, "gen": 4}}, noise=CLEAN, controls=HELD),
    ]


def _precisions() -> list[dict[str, Any]]:
    steps = {
        "mlp": {"fp32": (9.1, 512), "tf32": (3.0, 512), "fp16": (1.4, 301), "bf16": (1.4, 301)},
        "cnn": {"fp32": (14.2, 911), "tf32": (8.8, 911), "fp16": (6.1, 498), "bf16": (6.0, 498)},
        "transformer": {"fp32": (31.0, 1480), "tf32": (15.2, 1480), "fp16": (11.9, 890), "bf16": (12.1, 890)},
    }
    errors = {"fp32": 0.0, "tf32": 4.1e-4, "fp16": 8.8e-4, "bf16": 5.2e-3}
    return [
        observation(
            f"C14.bench.{network}.{kind}",
            "gpu:0",
            observed={
                "network": network,
                "shape": [8192, 256],
                "precision": kind,
                "threads": 1,
                "step_ms": step,
                "time_ratio_to_fp32": step / by_kind["fp32"][0],
                "peak_bytes": peak * MIB,
                "saved_bytes": peak * MIB // 2,
                "loss_rel_err": errors[kind] / 40,
                "grad_rel_l2": errors[kind],
                "grad_one_minus_cos": errors[kind] ** 2,
            },
            **timed(step, seed=peak),
        )
        for network, by_kind in steps.items()
        for kind, (step, peak) in by_kind.items()
    ]


def _products() -> list[dict[str, Any]]:
    rates = {"tf32": 402.0, "fp16": 741.0, "bf16": 755.0}
    products = [
        observation(
            f"C15.gemm.{kind}",
            "gpu:0",
            observed={
                "precision": kind,
                "size": 8192,
                "capability": "9.0",
                "tflops": rate,
                "tflops_fp32": 51.2,
                "over_fp32": rate / 51.2,
                "over_tf32": rate / 402.0 if kind != "tf32" else None,
                "output_dtype": {"tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[kind],
                "claimed_bf16": True,
            },
            **timed(1100 / rate, seed=int(rate)),
        )
        for kind, rate in rates.items()
    ]
    saved = {8: 12.4, 512: 0.95, 8192: 0.53}
    return products + [
        observation(
            f"C16.batch{batch}",
            "gpu:0",
            observed={
                "batch": batch,
                "network": [256, 1024, 1024, 10],
                "dtype": "bfloat16",
                "saved_bytes_fp32": 100_000 * batch,
                "saved_bytes_amp": int(100_000 * batch * share),
                "saved_ratio": share,
                "peak_bytes_fp32": 200_000 * batch,
                "peak_bytes_amp": int(150_000 * batch * share),
                "weight_bytes": 5_300_000,
                "largest": batch == 8192,
            },
            controls=HELD,
        )
        for batch, share in saved.items()
    ]


def _poison(tree: dict[str, Any], text: str) -> None:
    """Put a text into every field that comes from outside envkit."""
    tree["subject"] |= {"image": text, "name": text, "tags": [text]}
    tree["run"]["argv"] = [text]
    tree["run"]["payload"]["stderr_tail"] = [text]
    tree["env"]["host"]["cpu_model"] = text
    tree["env"]["gpu"][0]["name"] = text
    tree["env"]["flags"] = {text: text}
    tree["env"]["sw"]["loaded_libs"] = {text: text}
    tree["summary"]["reasons"].append({"code": "TEXT", "message": text, "advice": text})
    for item in tree["checks"]:
        item["message"] = text
        item["subject"] = text
        item["advice"] = [text]
        item["controls"] = [{"name": text, "held": True, "detail": text}]
        item["observed"] = {**item["observed"], text: text, "network": text, "workload": text}
    tree["checks"][0]["title"] = text


_ENV = {
    "host": {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8480C",
        "machine": "x86_64",
        "logical": 16,
        "affinity": 16,
        "quota_cpus": None,
        "effective": 16.0,
        "numa_nodes": 1,
        "ram_gb": 137.4,
        "memcg_gb": 128.0,
        "shm_mb": 64,
        "memlock": "unlimited",
        "kernel": "6.8.0",
        "virt": "kvm",
        "cgroup": 2,
    },
    "gpu": [
        {
            "uuid": "GPU-00000000-0000-0000-0000-000000000000",
            "name": "NVIDIA H200",
            "cc": "9.0",
            "mem_mib": 143771,
            "driver": "580.95.05",
            "mig": False,
            "ecc": True,
            "link": {"gen_max": 5, "width_max": 16, "gen": 5, "width": 16},
        }
    ],
    "sw": {
        "python": "3.12.1",
        "torch": "2.7.1+cu126",
        "torch_cuda": "12.6",
        "cudnn_runtime": "9.5.1",
        "nccl": "2.26.2",
        "arch_list": ["sm_80", "sm_90"],
        "loaded_libs": {"libcudnn.so.9": "/opt/env/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9"},
        "openmp": ["libgomp"],
    },
    "flags": {"matmul_precision": "highest", "deterministic": False, "OMP_NUM_THREADS": "4"},
}
_CPU_ENV = {**_ENV, "gpu": [], "sw": {"python": "3.12.1", "torch": "2.7.1+cpu", "torch_cuda": None}}
