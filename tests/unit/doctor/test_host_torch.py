"""The torch of the active environment, and in one sentence why it does not see the GPU."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.cli.main import run
from envkit.doctor.host import gpu, torch
from envkit.doctor.host.diagnose import conclude
from envkit.doctor.model import Finding, Section, Severity
from envkit.facts.load import load
from envkit.ground.process import Answer
from tests.unit.doctor.machine import machine

DRIVER = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n"}
CUDA = {"torch": "2.9.1+cu130", "cuda": "13.0", "available": False, "count": 0, "warnings": []}


def looked_at(
    root: Path,
    told: dict[str, Any] | Answer | None,
    *,
    driver: bool = True,
    environ: dict[str, str] | None = None,
    python: str | None = None,
) -> Section:
    said: str | Answer | None
    if isinstance(told, dict):
        found = json.dumps({"python": "3.12.1", "path": "/v/bin/python", **told})
        said = f"a line of a sitecustomize\nenvkit-doctor:{found}\n"
    else:
        said = told
    answers = {} if said is None else {"python3": said, "/v/bin/python": said}
    return torch.section(machine(root, DRIVER if driver else {}, answers, environ), load(), python)


def only(section: Section) -> Finding:
    (finding,) = section.findings
    return finding


def test_a_torch_that_sees_gpus_is_shown_without_a_finding(tmp_path: Path) -> None:
    found = looked_at(tmp_path, {"torch": "2.7.1+cu126", "cuda": "12.6", "available": True, "count": 2})
    assert found.findings == ()
    assert dict(found.facts) == {
        "Python": "3.12.1, /v/bin/python (first on PATH)", "torch": "2.7.1+cu126", "built for CUDA": "12.6",
        "sees GPUs": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "options", "kind", "sentence"),
    [
        ({"error": "ModuleNotFoundError: No module named 'torch'"}, {}, ("torch-missing", Severity.INFO),
         "the active Python has no torch"),
        ({"error": "ImportError: x: undefined symbol: ncclCommResume"}, {}, ("torch-import-fails", Severity.ERROR),
         "torch is installed but cannot be imported: The NCCL that is loaded lacks a function that a library needs"),
        ({"torch": "2.9+cpu", "cuda": None, "available": False}, {}, ("torch-cpu-build", Severity.ERROR),
         "torch 2.9+cpu is a CPU build, so it sees no GPU"),
        ({"torch": "2.9+cpu", "cuda": None, "available": False}, {"driver": False}, ("torch-cpu-build", Severity.INFO),
         "torch 2.9+cpu is a CPU build, so it sees no GPU"),
        ({"torch": "2.9.1", "cuda": None, "hip": "6.4", "available": False}, {}, ("torch-rocm", Severity.WARN),
         "torch 2.9.1 is built for AMD GPUs, so it does not see NVIDIA GPUs"),
        (CUDA, {"driver": False}, ("torch-without-driver", Severity.WARN),
         "torch 2.9.1+cu130 for CUDA 13.0 sees no GPU: no NVIDIA driver was found"),
        (CUDA, {}, ("torch-driver-too-old", Severity.ERROR),
         "torch 2.9.1+cu130 for CUDA 13.0 sees no GPU: driver 535.104.05 is older than CUDA 13.0 needs (580"),
        (CUDA | {"cuda": "12.8"}, {"environ": {"CUDA_VISIBLE_DEVICES": ""}}, ("torch-devices-hidden", Severity.ERROR),
         "torch 2.9.1+cu130 for CUDA 12.8 sees no GPU: CUDA_VISIBLE_DEVICES= hides them all"),
        (CUDA | {"cuda": "12.8", "why": "No CUDA GPUs are available"}, {}, ("torch-sees-no-gpu", Severity.ERROR),
         "torch 2.9.1+cu130 for CUDA 12.8 sees no GPU: No GPU is available to the program"),
        (CUDA | {"cuda": "12.8"}, {}, ("torch-sees-no-gpu", Severity.ERROR),
         "torch 2.9.1+cu130 for CUDA 12.8 sees no GPU: CUDA does not start"),
        (Answer(code=-11, out="", err="Segmentation fault"), {}, ("torch-unanswered", Severity.WARN),
         "importing torch failed"),
    ],
)  # fmt: skip
def test_the_reason_is_one_sentence(
    tmp_path: Path, told: Any, options: dict[str, Any], kind: tuple[str, Severity], sentence: str
) -> None:
    finding = only(looked_at(tmp_path, told, **options))
    assert (finding.id, finding.severity) == kind
    assert finding.title.startswith(sentence)
    assert finding.fix or finding.check


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_comes_before_the_path(tmp_path: Path, variable: str) -> None:
    (tmp_path / "v/bin").mkdir(parents=True)
    (tmp_path / "v/bin/python").touch()
    told = {"torch": "2.7.1", "cuda": "12.6", "available": True, "count": 1}
    found = looked_at(tmp_path, told, environ={variable: "/v"})
    assert dict(found.facts)["Python"].endswith(f"({variable})")
    named = looked_at(tmp_path, told, environ={variable: "/v"}, python="/v/bin/python")
    assert dict(named.facts)["Python"].endswith("(--python)")


def test_a_machine_without_python_is_told_of(tmp_path: Path) -> None:
    assert looked_at(tmp_path, None).facts == (("Python", "none"),)


def test_a_machine_without_driver_and_gpu_is_told_so_first(tmp_path: Path) -> None:
    section = gpu.section(machine(tmp_path), load())
    finding = only(section)
    assert finding.title == "no NVIDIA driver was found on this machine"
    assert "torch.cuda.is_available() is False" in finding.cause
    found = conclude((section,))
    assert found.exit_code == 0
    assert found.conclusion == "no NVIDIA driver was found on this machine; envkit works here"


def test_a_container_is_told_to_start_with_gpus(tmp_path: Path) -> None:
    finding = only(gpu.section(machine(tmp_path, {"/.dockerenv": ""}), load()))
    assert "--gpus all" in finding.fix[0]


def test_the_python_has_to_be_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["doctor", "--python", str(tmp_path / "absent")]) == 2
    assert "no such program" in capsys.readouterr().err
    assert run(["doctor", "--python", sys.executable, "--log", "x"]) == 2
    assert "--python is for this machine, not for --log" in capsys.readouterr().err


def test_the_probe_is_python_3_8() -> None:
    assert ast.parse(torch._PROBE, feature_version=(3, 8)).body
