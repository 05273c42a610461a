"""A faulty machine: exit code 9, never 0, and nothing is held against the image."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from envkit.attest.verification import verification_of
from envkit.checks.catalog import cards, folders, machine_codes
from envkit.fleet.verify_matrix import cell, remarks
from envkit.fleet.verify_task import Verification
from envkit.report.formats import render
from envkit.report.text import render_text
from envkit.verify.again import judge_again
from tests.support.judging import observation
from tests.support.records import kernel, record_of
from tests.support.verdicts import CLEAN
from tests.unit.checks.c07_repeat.test_judge import GEMM
from tests.unit.checks.c10_transfer.test_judge import GEN4, SAMPLES
from tests.unit.checks.c24_sustained.test_judge import LOAD, row, telemetry

Tree = dict[str, Any]
PRODUCT = {"rel_fro": 0.11, "rel_max": 0.3, "nonfinite": 0}
WRONG_PRODUCT = {"promise": "ieee", "sizes": {"512": PRODUCT}, "environment": {}}
WRONG_TORCH = observation("C01.torch", "image", observed={"found": "2.0.0+cu126"})
DRIVER = {"driver": "470.82.01", "cuda": "12.6", "compat_loaded": False, "device_name": "NVIDIA A100"}


def fails(error: str) -> Tree:
    return kernel(outcome="failed", text=f"Traceback (most recent call last):\n{error}")


def copy(rate: float, link: Tree) -> Tree:
    observed = {"gb_per_s": rate, "link": link, "decides": True}
    return observation("C10.h2d_pinned_256MiB", "gpu:0", observed=observed, noise=CLEAN, samples=SAMPLES)


def said(**changed: Any) -> Tree:
    return observation("C24.telemetry", "gpu:0", observed=telemetry(**changed))


def clocked(**changed: Any) -> Tree:
    return observation("C24.telemetry", "gpu:0", observed=telemetry(row(**changed)))


def lost(check: str) -> Tree:
    message = "CUDA error: an illegal memory access was encountered; no later operation works on this GPU"
    return observation(check, "gpu:0", "error", reason={"code": "CUDA_CONTEXT_LOST", "message": message})


FAULTS: dict[str, tuple[Tree, str, str]] = {
    "fallen off the bus": (
        said(xids=[79]),
        "XID",
        "the driver reported Xid 79 under load: The GPU no longer answers on the bus",
    ),
    "memory page retired": (
        said(xids=[63, 94]),
        "XID",
        (
            "the driver reported Xid 63, 94 under load: A row (or page) of the memory is to be replaced at the next "
            "reset. A memory error was contained: it ended the program that used the memory, and no other"
        ),
    ),
    "memory errors": (said(uncorrected_ecc=2), "ECC_UNCORRECTED", "2 uncorrectable memory errors under load"),
    "bad riser": (said(pcie_replays=900), "PCIE_REPLAYS", "the PCIe link replayed 900 packets in 1.0 minutes"),
    "stuck at idle clock": (clocked(sm_mhz=210), "CLOCK_COLLAPSED", "no error; 11% of the boost clock of 1980 MHz"),
    "power brake": (
        clocked(sm_mhz=345, events=["hw_power_brake"]),
        "CLOCK_COLLAPSED",
        "no error; 17% of the boost clock of 1980 MHz",
    ),
    "results change when hot": (
        observation("C24.load", "gpu:0", observed={**LOAD, "different": 3}),
        "RESULTS_CHANGE_UNDER_LOAD",
        "3 elements changed between equal products under load",
    ),
    "products differ": (
        observation("C07.gemm.fp16", "gpu:0", observed={**GEMM, "repeats_different": 2, "elements_different": 5}),
        "NONDETERMINISTIC_GEMM",
        "2 of 50 products of 512 x 512 differ from the first, in 5 elements",
    ),
    "products that differ and overflow": (
        observation("C07.gemm.fp16", "gpu:0", observed={**GEMM, "elements_different": 5, "nonfinite": 1}),
        "NONDETERMINISTIC_GEMM",
        "0 of 50 products of 512 x 512 differ from the first, in 5 elements",
    ),
    "bytes change on the way": (
        observation("C10.integrity", "gpu:0", observed={"exact": False, "bytes": 4097}),
        "COPY_WRONG",
        "4097 bytes came back changed",
    ),
    "copies to the host are wrong": (
        observation("C10.non_blocking", "gpu:0", observed={"d2h_exact_after_sync": False}),
        "COPY_WRONG",
        "a non_blocking copy to the host is wrong even after synchronizing",
    ),
    "a copy beside kernels changes": (
        observation("C11.overlap", "gpu:0", observed={"exact": False}),
        "COPY_WRONG",
        "a copy that ran while kernels ran arrived changed, although the streams were synchronized",
    ),
    "link fell back three generations": (
        observation("C10.link", "gpu:0", observed={"link": {**GEN4, "gen": 1}}, noise=CLEAN),
        "LINK_DOWNTRAINED",
        "PCIe 1.0 x16 under load, although GPU and slot support PCIe 4.0 x16",
    ),
    "one lane left": (
        copy(1.7, {**GEN4, "width": 1}),
        "BANDWIDTH_BELOW_FLOOR",
        "1.7 GB/s = 0.86 of PCIe 4.0 x1 as negotiated, 0.05 of PCIe 4.0 x16, which slot and card support",
    ),
    "slow socket": (copy(8.0, GEN4), "BANDWIDTH_BELOW_FLOOR", "8.0 GB/s = 0.25 of PCIe 4.0 x16"),
    "wedged": (
        kernel(outcome="timeout", text="no answer in 40 s"),
        "GPU_HANGS",
        "the GPU gave no answer in 40 s",
    ),
    "memory of a neighbor": (
        fails("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128 MiB"),
        "GPU_OUT_OF_MEMORY",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128 MiB",
    ),
    "memory held while ranks start": (
        observation(
            "C20.allreduce.nccl",
            "gpu:0",
            observed={"outcome": "failed", "backend": "nccl", "ranks": 2, "error": "RuntimeError: CUDA out of memory"},
        ),
        "GPU_OUT_OF_MEMORY",
        "nccl with 2 processes failed: RuntimeError: CUDA out of memory",
    ),
    "exclusive": (
        fails("RuntimeError: CUDA-capable device(s) is/are busy or unavailable"),
        "GPU_EXCLUSIVE",
        "RuntimeError: CUDA-capable device(s) is/are busy or unavailable",
    ),
    "fabric manager down": (
        fails("RuntimeError: Error 802: system not yet initialized"),
        "DRIVER_NOT_READY",
        "RuntimeError: Error 802: system not yet initialized",
    ),
    "driver too old": (
        observation("C03.driver", "host", observed=DRIVER),
        "DRIVER_TOO_OLD",
        "driver 470.82.01 is older than 525.60.13, the oldest that runs CUDA 12.6",
    ),
    "context lost": (
        lost("C06"),
        "CUDA_CONTEXT_LOST",
        "CUDA error: an illegal memory access was encountered; no later operation works on this GPU",
    ),
}
"""What happened: an observation, the reason code, and how the finding's message begins."""


def sick(*checks: Tree) -> Tree:
    """The record of a run whose kernel computed the right result, with these observations."""
    own = [] if any(one["id"].startswith("C04") for one in checks) else [kernel()]
    return record_of([*own, *checks])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_machine_at_fault_gives_exit_code_9_and_never_blames_the_image(fault: str) -> None:
    observed, code, sentence = FAULTS[fault]
    record = sick(observed)
    summary = record["summary"]
    assert (summary["verdict"], summary["exit_code"], summary["blames"]) == ("FAIL", 9, "machine")
    (item,) = (one for one in record["checks"] if one["verdict"] == "FAIL")
    assert (item["reason_code"], item["blames"], item["gates"]) == (code, "machine", True)
    assert item["message"].startswith(sentence)
    (reason,) = (one for one in summary["reasons"] if one["code"] == "MACHINE_FAULT")
    assert reason["message"] == f"this machine is faulty, not the image: {code} on {observed['subject']}"
    assert judge_again(record).changed == ()


def test_there_are_twenty_faults() -> None:
    assert len(FAULTS) >= 20


@pytest.mark.parametrize(
    ("fault", "failure", "code"),
    [
        ("memory errors", observation("C05.fp32", "gpu:0", observed=WRONG_PRODUCT), 9),
        ("memory errors", observation("C05.fp32", "gpu:1", observed=WRONG_PRODUCT), 6),
        ("memory errors", observation("C05.fp32", "cpu", observed=WRONG_PRODUCT), 6),
        ("memory errors", WRONG_TORCH, 6),
        ("driver too old", observation("C05.fp32", "gpu:1", observed=WRONG_PRODUCT), 9),
        ("driver too old", WRONG_TORCH, 6),
    ],
)
def test_only_a_failure_that_a_faulty_gpu_cannot_cause_is_the_images(fault: str, failure: Tree, code: int) -> None:
    record = sick(FAULTS[fault][0], failure)
    summary = record["summary"]
    assert (summary["verdict"], summary["exit_code"]) == ("FAIL", code)
    assert summary["blames"] == {9: "machine", 6: "image"}[code]
    said = summary["reasons"][0]["message"]
    assert ("does not count against the image" in said) is (code == 9)
    assert ("and so is the image" in said) is (code == 6)


def test_a_clock_that_cannot_be_trusted_blames_nothing() -> None:
    record = record_of([kernel(), FAULTS["slow socket"][0]], timing_trusted=False)
    assert (record["summary"]["verdict"], record["summary"]["exit_code"]) == ("WARN", 0)


def test_every_report_names_the_machine() -> None:
    record = sick(FAULTS["memory errors"][0])
    assert render_text(record).startswith("MACHINE FAULT  train")
    assert "ECC_UNCORRECTED (machine): 2 uncorrectable" in render_text(record)
    assert "MACHINE FAULT: train" in render("md", record).decode()
    page = render("html", record).decode()
    assert "This machine or its driver is faulty; the image is not verified. Exit code 9." in page
    suite = ET.fromstring(render("junit", record))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "2"), "nothing of the image failed"


def test_a_fleet_and_an_inspection_do_not_count_it_as_the_images() -> None:
    record = sick(FAULTS["memory errors"][0], observation("C05.fp32", "gpu:0", observed=WRONG_PRODUCT))
    found = Verification(
        image="train:1",
        machine="one",
        worker="w",
        verdict="FAIL",
        exit_code=9,
        duration_s=1.0,
        record=record,
    )
    assert cell(found) == "MACHINE FAULT C24.telemetry"
    assert remarks(found)[0] == "MACHINE FAULT, exit code 9"
    assert not verification_of(record).failed
    assert not verification_of(record).holds
    assert verification_of(sick(WRONG_TORCH)).failed


def test_every_code_that_blames_the_machine_is_used_by_its_check() -> None:
    """A code nobody gives would excuse nothing; one that is misspelled would let a sick machine blame the image."""
    for folder in folders():
        root = Path(str(folder))
        texts = "".join(path.read_text(encoding="utf-8") for path in (*root.glob("*.py"), *SMOKE.glob("*.py")))
        codes = cards()[folder.name].get("machine", ())
        assert [code for code in codes if f'"{code}"' not in texts and code not in RESERVED] == []
    assert machine_codes() >= {code for _, code, _ in FAULTS.values()}


SMOKE = Path(__file__).parents[3] / "envkit" / "smoke"
RESERVED = ("CUDA_CONTEXT_LOST",)
