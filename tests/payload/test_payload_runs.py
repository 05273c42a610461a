"""The payload as it runs in an image: one archive, an empty folder, another process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.checks.catalog import CheckEntry, judges, select
from envkit.checks.model import Verdict
from envkit.verify.judge import Judged, judge
from envkit.verify.payload import parse_document, payload_archive

NONCE = "5f0c"
SPEC: dict[str, Any] = {
    "nonce": NONCE,
    "gpu": False,
    "python": ".".join(map(str, sys.version_info[:2])),
    "loader": {"num_workers": 2, "prefetch_factor": 2, "batch_bytes": 4 << 20, "pin_memory": True},
}
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install torch"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "payload.pyz").write_bytes(payload_archive())
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    return tmp_path


def start(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    # Deprecation warnings are errors: no interface of torch that is about to go may be used.
    warnings = ["-W", "error::DeprecationWarning", "-W", "error::FutureWarning"]
    command = [sys.executable, *warnings, "payload.pyz", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False, env={**os.environ, **env})


def judged(ended: subprocess.CompletedProcess[bytes], *only: str) -> dict[str, Judged]:
    assert ended.returncode == 0, ended.stderr.decode()
    document = parse_document(ended.stdout, NONCE)
    entries: tuple[CheckEntry, ...] = select("quick", only)
    return {item.id: item for item in judge(document, SPEC, entries, judges())}


@needs_torch
def test_the_checks_of_the_host_run_and_are_judged(folder: Path) -> None:
    only = ("C00", "C01", "C02", "C03", "C04", "C08", "C09", "C10", "C13")
    found = judged(start(folder, "--spec", "spec.json", "--only", ",".join(only)), *only)
    bad = {name: item.finding for name, item in found.items() if item.finding.verdict in (Verdict.FAIL, Verdict.ERROR)}
    # A quota of the machine that runs the tests is no fault of the payload.
    bad.pop("C08.throttling", None)
    assert not bad
    assert thresholds.load().unmatched(found) == ()
    assert found["C01.python"].finding.verdict is Verdict.PASS
    assert found["C02.libraries"].finding.derived["torch_libraries"] >= 3
    assert found["C13.shm"].ran


def test_without_torch_the_failure_is_named_and_the_rest_is_skipped(folder: Path) -> None:
    broken = folder / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    ended = start(folder, "--spec", "spec.json", "--only", "C00,C01,C02,C08", PYTHONPATH=str(broken))
    document = parse_document(ended.stdout, NONCE)
    torch = next(item for item in document["checks"] if item["id"] == "C01.torch")
    spec = {**SPEC, "torch": "2.7.1"}
    found = {
        item.id: item.finding for item in judge(document, spec, select("quick", ("C00", "C01", "C02", "C08")), judges())
    }
    assert "libcudart.so.12" in torch["observed"]["error"]
    assert (found["C01.torch"].verdict, found["C01.torch"].reason_code) == (Verdict.FAIL, "TORCH_BROKEN")
    assert found["C02"].reason_code == found["C08"].reason_code == "TORCH_MISSING"


def test_whatever_else_prints_goes_to_stderr(folder: Path) -> None:
    noisy = folder / "noisy"
    noisy.mkdir()
    (noisy / "torch.py").write_text(
        "import os\nprint('a banner')\nos.write(1, b'a native print\\n')\nraise ImportError('x')\n"
    )
    ended = start(folder, "--spec", "spec.json", "--only", "C01", PYTHONPATH=str(noisy))
    assert len(ended.stdout.splitlines()) == 2
    assert b"a banner" in ended.stderr
    assert b"a native print" in ended.stderr


def test_the_spec_may_come_from_standard_input(folder: Path) -> None:
    command = [sys.executable, "payload.pyz", "--spec", "-", "--only", "C00"]
    ended = subprocess.run(command, cwd=folder, input=json.dumps(SPEC).encode(), capture_output=True, check=True)
    assert parse_document(ended.stdout, NONCE)["order"] == ["C00"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--spec", "absent.json"], "No such file"),
        (["--spec", "payload.pyz"], "error: "),
        (["--spec", "list.json"], "not a JSON object"),
        (["--spec", "launch.json"], "launch.body_factor is 1 to 8, not 99"),
        (["--only", "C99"], "no such check: C99"),
        (["--tier", "fast"], "invalid choice"),
    ],
)
def test_a_wrong_call_is_told_in_one_line_and_exits_2(folder: Path, arguments: list[str], words: str) -> None:
    (folder / "list.json").write_text("[]")
    (folder / "launch.json").write_text('{"launch": {"body_factor": 99}}')
    ended = start(folder, *arguments)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert words in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr


def test_list_prints_the_checks_and_runs_none(folder: Path) -> None:
    ended = start(folder, "--list")
    assert [line.split("\t")[0] for line in ended.stdout.decode().splitlines()] == [item.id for item in select("quick")]


# The payload up to where it would fork: what all of its processes are given.
GIVEN = """
import os, sys
sys.path.insert(0, "payload.pyz")
from envkit.smoke import __main__ as payload
payload.supervisor.supervise = lambda *_args, **_options: print(os.environ["CUDA_CACHE_PATH"]) or 0
payload.main(["--spec", "spec.json", "--only", "C00"])
"""


@pytest.mark.parametrize("named", [None, "/image/cache"])
def test_kernels_that_the_driver_compiles_are_kept_where_a_run_may_write(folder: Path, named: str | None) -> None:
    (folder / "tmp").mkdir()
    env = {
        **os.environ,
        "TMPDIR": str(folder / "tmp"),
        "HOME": "/proc",
        **({"CUDA_CACHE_PATH": named} if named else {}),
    }
    done = subprocess.run([sys.executable, "-c", GIVEN], cwd=folder, capture_output=True, check=True, env=env)
    assert done.stderr.decode().strip() == (named or str(folder / "tmp" / "envkit-cuda-cache"))
