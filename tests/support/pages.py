"""The documents of every HTML page, made by the same code as for users. Some contain hostile text."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from envkit.fleet import report
from envkit.fleet.verify_matrix import Matrix
from envkit.fleet.verify_task import Machine, Verification
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.report.html import comparison, image, matrix
from envkit.report.html.page import render_html
from envkit.verify.compare.result import compared
from envkit.verify.compare.sides import Side
from envkit.verify.driver import Options, verify_image
from envkit.watch import page as watch
from envkit.watch.judge import judge
from envkit.watch.model import Sample
from tests.support.judging import Replay, document, inspected, plan, printed
from tests.support.launches import timed
from tests.support.records import HOSTILE, cpu_record, dead_record, gpu_record, passed_record
from tests.support.watched import card, process, sample
from tests.support.watched import record as watched_record
from tests.unit.fleet.samples import IMPOSSIBLE, cell, outcome
from tests.unit.watch.test_judge import COPIES

_TIMES = {"C14.bench.mlp.fp32": 2.0, "C14.bench.cnn.fp32": 5.0, "C14.bench.transformer.fp32": 9.0}
_SPREAD = (1.0, 1.01, 0.99, 1.004, 0.996, 1.008)


def comparison_tree(factor: float = 1.3, name: str = "train:2") -> dict[str, Any]:
    """Return a comparison of six launches per side. Side B takes `factor` times as long in one of three metrics."""
    slowed = {"C14.bench.cnn.fp32": factor}
    sides = [
        Side(name=image_name, records=tuple(_launch(share, factors) for share in _SPREAD))
        for image_name, factors in (("train:1", {}), (name, slowed))
    ]
    return _plain(compared(sides[0], sides[1], interleaved=True, seed=1).to_json())


def _launch(share: float, slowed: dict[str, float]) -> Any:
    def answer(spec: dict[str, Any]) -> bytes:
        checks = [timed(took * share * slowed.get(metric, 1.0), metric) for metric, took in _TIMES.items()]
        return printed(document(*checks, nonce=spec["nonce"]), spec["nonce"])

    made = plan(cuda=None)
    runner = Replay(answer, image=inspected(made))
    return _plain(
        json.loads(verify_image(image_name("img"), made, runner, Silent(), Options(only=("C14",))).to_bytes())
    )


def verified_tree(name: str = "train:cu126") -> dict[str, Any]:
    """Return a matrix of two images on three machines, with one pair that was not run."""
    machines = tuple(Machine(name=host, host=host) for host in ("gpu-01", "gpu-02", "login"))
    records = [(name, 0, gpu_record()), (name, 1, passed_record()), (name, 2, cpu_record()), ("base", 0, dead_record())]
    done = [
        Verification(
            image=image_name,
            machine=machines[at].name,
            record=record,
            verdict=record["summary"]["verdict"],
            exit_code=record["summary"]["exit_code"],
            duration_s=41.2,
        )
        for image_name, at, record in records
    ]
    lost = Verification(
        image="base", machine="gpu-02", record=None, verdict="ERROR", exit_code=9, duration_s=3.0,
        error=f"the worker of {name} ended", hint="envkit verify base",
    )  # fmt: skip
    results = Matrix(images=(name, "base"), machines=machines, verifications=(*done, lost), kept=(None,) * 5)
    return _plain(results.to_json("tcp://10.0.0.1:8786"))


def built_tree(error: str = "the registry denied access") -> dict[str, Any]:
    """Return a matrix of two axes with two values each, in which one cell failed and one is impossible."""
    cells, outcomes = [], []
    for cuda, python, status, code in (
        ("12.6", "3.11", "built", 0),
        ("12.6", "3.12", "failed", 8),
        ("12.8", "3.11", "unproved", 5),
    ):
        name = f"train-cuda{cuda}-python{python}"
        cells.append(cell(name, axes=(("cuda", cuda), ("python", python))))
        failed = {"error": error, "hint": "envkit build"} if code else {}
        outcomes.append(outcome(name, status, code, **failed))
    axes = (("cuda", "12.8"), ("python", "3.12"))
    impossible = replace(IMPOSSIBLE, name="train-cuda12.8-python3.12", axes=axes)
    return _plain(
        report.document(cells, outcomes, [impossible], where="matrix.yaml", duration_s=321.5, jobs=2, skip=True)
    )


def image_tree(name: str = "oci:out/image") -> dict[str, Any]:
    """Return an image with six layers and invented packages of three kinds, as in `envkit inspect --json`."""
    sizes = (28_900_000, 96_000_000, 1_150_000_000, 460_000_000, 9_400_000, 1_200)
    made = ("debian base", "python 3.12", "torch, nvidia-cudnn-cu12", f"nvidia-nccl-cu12 {name}", "numpy", "")
    layers = [
        {"number": at, "diff_id": "sha256:" + f"{at}" * 64, "digest": "sha256:" + f"{at}" * 64, "size": size,
         "unpacked": size * 2, "made_by": text}
        for at, (size, text) in enumerate(zip(sizes, made, strict=True), 1)
    ]  # fmt: skip
    nvidia, bsd = "LicenseRef-NVIDIA-Proprietary", "BSD-3-Clause"
    rows = [
        ("deb", "coreutils", "9.1-1", "GPL-3", 18_100_000),
        ("deb", "dpkg", "1.21.22", "GPL-2+", 6_400_000),
        ("deb", "libc6", "2.36-9", "LGPL-2.1", 13_000_000),
        ("deb", "perl-base", "5.36.0-7", "Artistic", 7_900_000),
        ("conda", "ca-certificates", "2024.8.30", "ISC", 160_000),
        ("conda", "ncurses", "6.4", "X11", 4_100_000),
        ("conda", "openssl", "3.2.0", "Apache-2.0", 8_300_000),
        ("conda", "python", "3.12.1", "Python-2.0", 102_000_000),
        ("conda", "tk", "8.6.13", "TCL", 9_200_000),
        ("pypi", name, "1.0", None, None),
        ("pypi", "numpy", "2.3.0", bsd, 62_000_000),
        ("pypi", "nvidia-cublas-cu12", "12.6.4.1", nvidia, 610_000_000),
        ("pypi", "nvidia-cudnn-cu12", "9.5.1.17", nvidia, 940_000_000),
        ("pypi", "nvidia-cufft-cu12", "11.3.0.4", nvidia, 280_000_000),
        ("pypi", "nvidia-cusparse-cu12", "12.5.4.2", nvidia, 290_000_000),
        ("pypi", "nvidia-nccl-cu12", "2.26.2", bsd, 360_000_000),
        ("pypi", "pillow", "11.2.1", "MIT-CMU", 14_000_000),
        ("pypi", "sympy", "1.14.0", bsd, 29_000_000),
        ("pypi", "torch", "2.7.1+cu126", bsd, 1_640_000_000),
        ("pypi", "triton", "3.3.1", "MIT", 410_000_000),
    ]
    packages = [
        {"kind": kind, "name": package, "version": version, "license": text, "unpacked": unpacked}
        for kind, package, version, text, unpacked in rows
    ]
    run = {"verdict": "PASS", "started": "2026-01-01T00:00:00Z", "tier": "standard", "runner": "docker",
             "gpus": [{"name": "NVIDIA H200"}], "cpu": None, "signature": "unsigned"}  # fmt: skip
    return {
        "schema": "envkit.inspect/1", "image": name, "digest": "sha256:" + "a" * 64, "id": "sha256:" + "b" * 64,
        "title": "train", "created": "2026-01-01T00:00:00Z", "size_bytes": sum(sizes), "layers": len(sizes),
        "stack": {"torch": "2.7.1", "CUDA": "12.6"}, "user": "1000:1000", "workdir": "/workspace", "entrypoint": [],
        "cmd": ["python"], "ports": [], "labels": {"com.example.team": name},
        "base": {"name": "debian", "digest": None},
        "packages": {"conda": 5, "pypi": 11, "deb": 4}, "notes": [], "verdict": "not proved", "verifications": [run],
        "listing": {"layers": layers, "packages": packages, "unlisted_rpm": False},
    }  # fmt: skip


@cache
def pages() -> dict[str, bytes]:
    """Return every page by name. Those whose name ends in `hostile` have markup in all external text."""
    training = watched_record(
        process(COPIES),
        samples=tuple(_watched(at) for at in range(1, 61)),
    )
    hostile = replace(training, command=("python", HOSTILE))
    return {
        "verify": render_html(gpu_record()),
        "compare": comparison.render_html(comparison_tree()),
        "compare hostile": comparison.render_html(comparison_tree(name=HOSTILE)),
        "compare too few": comparison.render_html(_few()),
        "verified": matrix.render_html(verified_tree()),
        "verified hostile": matrix.render_html(verified_tree(HOSTILE)),
        "built": matrix.render_html(built_tree()),
        "built hostile": matrix.render_html(built_tree(HOSTILE)),
        "image": image.render_html(image_tree()),
        "image hostile": image.render_html(image_tree(HOSTILE)),
        "image unread": image.render_html({**image_tree(), "listing": None, "packages": None, "size_bytes": None}),
        "watch": watch.render_html(training, judge(training)),
        "watch hostile": watch.render_html(hostile, judge(hostile)),
    }


def _watched(index: int) -> Sample:
    """Return one of 60 samples in 30 s. The training's steps run from second 5 to 25."""
    at_s, late = index / 2, index % 6 in (4, 5)
    if not 5 < at_s <= 25:
        return sample(at_s=at_s, gpus=(card(util=0.0, sm_mhz=345, memory_used=min(round(at_s * 12), 60) << 30),))
    busy = card(util=62.0 if late else 71.0, sm_mhz=1755 + 15 * (index % 5))
    waiting, steps = (0.06, 4.6) if late else (0.01, 5.1)
    return sample(at_s=at_s, cpus=4.6 if late else 3.9, waiting=waiting, steps=steps, gpus=(busy,))


def _few() -> dict[str, Any]:
    sides = [Side(name=letter, records=(_launch(1.0, {}),)) for letter in "ab"]
    return _plain(compared(sides[0], sides[1], interleaved=False).to_json())


def _plain(tree: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(tree, default=dict))
    return plain
