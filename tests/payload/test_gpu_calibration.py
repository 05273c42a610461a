"""The calibration on a model of a GPU: a planted fault is named, one that was not planted is missed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._gpu_faults import FAULTS
from benchmarks.gpu_calibration import Session, _named, _standin
from envkit.checks import catalog
from envkit.verify.payload import payload_archive

pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


def test_every_fault_can_be_planted_and_its_code_is_one_of_a_judge(tmp_path: Path) -> None:
    (tmp_path / "payload.pyz").write_bytes(payload_archive())
    patches = "\n".join(fault.patch for fault in FAULTS)
    code = f"import sys; sys.path.insert(0, 'payload.pyz')\n{patches}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    package = Path(catalog.__file__).parents[1]
    sources = "".join(path.read_text() for path in (*package.rglob("checks/**/*.py"), *package.rglob("smoke/*.py")))
    known = {code for fault in FAULTS for code in fault.expected.values() if f'"{code}"' in sources}
    assert known >= {code for fault in FAULTS for code in fault.expected.values()} - {"CUDA_CONTEXT_LOST"}


_CALLABLE = """
import inspect, sys
sys.path.insert(0, "payload.pyz")
import torch
from envkit.smoke import context, timing
from envkit.checks import c10_transfer, c27_device_memory, c28_links
places = [context.Ctx, timing, c10_transfer.Copy, c27_device_memory, c28_links.Ways]
def functions():
    return {(i, name): value for i, place in enumerate(places) for name, value in vars(place).items()
            if inspect.isfunction(value)}
before = functions()
exec(sys.argv[1])
for key, value in functions().items():
    if key in before and value is not before[key]:
        print(key[1], inspect.signature(before[key]), "->", inspect.signature(value))
        inspect.signature(value).bind(*inspect.signature(before[key]).parameters)
"""


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if "\nc." in fault.patch or "\nt." in fault.patch])
def test_what_a_fault_replaces_takes_the_same_arguments(tmp_path: Path, name: str) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    (tmp_path / "payload.pyz").write_bytes(payload_archive())
    argv = [sys.executable, "-c", _CALLABLE, fault.patch]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert "->" in done.stdout or "c05_gemm" in fault.patch


@pytest.mark.long
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.modeled])
def test_every_fault_that_the_model_can_show_is_named(tmp_path: Path, name: str) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    scratch, records = tmp_path / "scratch", tmp_path / "records"
    scratch.mkdir()
    records.mkdir()
    session = Session(records, scratch, "two", time.monotonic())
    session.standin, session.smaller = _standin(scratch)
    assert _named(session, fault), (records / "two.jsonl").read_text()[-2000:]


@pytest.mark.long
def test_a_planted_fault_is_named_and_one_that_is_not_planted_is_missed(tmp_path: Path) -> None:
    scratch, records = tmp_path / "scratch", tmp_path / "records"
    scratch.mkdir()
    records.mkdir()
    session = Session(records, scratch, "two", time.monotonic())
    session.standin, session.smaller = _standin(scratch)
    (fault,) = [item for item in FAULTS if item.name == "a word of device memory that loses a bit"]
    assert _named(session, fault)
    assert not _named(session, replace(fault, patch=""))
    rows = [json.loads(line) for line in (records / "two.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["payload", "fault", "payload", "fault"]
    assert rows[3]["missed"] == ["C27.pattern without DEVICE_MEMORY_WRONG"]
