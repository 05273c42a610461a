"""A payload whose checks hang, crash or are ended: the document comes all the same, and names the check."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from envkit.verify.payload import parse_document, payload_archive
from tests.support.pids import all_end

NONCE = "5f0c"
_BEGIN = """
import contextlib, ctypes, os, signal, subprocess, sys, time
sys.path.insert(0, "payload.pyz")
from envkit.smoke import observation, suite, supervisor
from envkit.smoke.__main__ import _emit
from envkit.smoke.context import Ctx

supervisor.GRACE_S = 0.2

class Device(Ctx):
    has_torch, has_cuda, uses_gpu, subject = True, True, True, "gpu:0"

def check(name, run, needs="host"):
    row = {"id": name, "title": "", "tier": "quick", "needs": needs, "budget_s": 0.05, "budgets_s": {}}
    return suite.Check(row, run)

def supervised(*checks, ctx=None):
    ctx = ctx or Ctx({"nonce": "5f0c"})
    work = lambda send: suite.run_suite(ctx, checks, send)
    sys.exit(supervisor.supervise(supervisor.Run(ctx, "quick", checks), work, lambda document: _emit(1, document)))

def hang(ctx):
    # It holds the interpreter's lock for ever, and no signal interrupts it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ctypes.PyDLL(None).sleep(3600)

fine = lambda name: check(name, lambda ctx: [observation.ran(name, "host", {})])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "payload.pyz").write_bytes(payload_archive())
    return tmp_path


def start(folder: Path, script: str) -> subprocess.Popen[bytes]:
    code = _BEGIN + textwrap.dedent(script)
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
    """The exit code and the document."""
    out, errors = process.communicate(timeout=60)
    assert out, errors.decode()
    return process.returncode, parse_document(out, NONCE)


def codes(document: dict[str, Any]) -> dict[str, str | None]:
    return {item["id"]: (item["reason"] or {}).get("code") for item in document["checks"]}


@pytest.mark.parametrize(
    ("ctx", "needs", "code"), [("None", "host", "TIME_LIMIT"), (f"Device({{'nonce': {NONCE!r}}})", "cuda", "GPU_HANGS")]
)
def test_a_check_that_holds_the_interpreter_for_ever_still_gives_a_document(
    folder: Path, ctx: str, needs: str, code: str
) -> None:
    script = f"""
        supervised(fine("C90"), check("C91", hang, {needs!r}), fine("C92"), ctx={ctx})
    """
    exit_code, document = ended(start(folder, script))
    assert exit_code == 0
    assert codes(document) == {"C90": None, "C91": code, "C92": "SUITE_STOPPED"}
    assert document["order"] == ["C90", "C91"]
    assert "could not be interrupted" in document["checks"][1]["reason"]["message"]
    assert document["env"]["host"]["effective"] > 0


def test_a_process_that_crashes_is_named_and_its_exit_code_stays(folder: Path) -> None:
    script = """
        def run(ctx):
            yield observation.ran("C91.part", "host", {})
            os.kill(os.getpid(), signal.SIGSEGV)
        supervised(fine("C90"), check("C91", run), fine("C92"))
    """
    exit_code, document = ended(start(folder, script))
    assert exit_code == 128 + signal.SIGSEGV
    assert codes(document) == {"C90": None, "C91.part": None, "C91": "CRASHED", "C92": "SUITE_STOPPED"}


def test_what_a_hung_check_started_is_ended_with_it(folder: Path) -> None:
    script = """
        def run(ctx):
            other = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            with open("pid", "w") as file:
                file.write(str(other.pid))
            hang(ctx)
        supervised(check("C90", run))
    """
    assert codes(ended(start(folder, script))[1]) == {"C90": "TIME_LIMIT"}
    assert all_end([int((folder / "pid").read_text())], within_s=10)


def test_a_payload_that_is_told_to_end_says_what_it_knows(folder: Path) -> None:
    script = """
        def run(ctx):
            os.kill(os.getppid(), signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(3600)
        supervised(fine("C90"), check("C91", run), fine("C92"))
    """
    exit_code, document = ended(start(folder, script))
    assert exit_code == 128 + signal.SIGTERM
    assert codes(document) == {"C90": None, "C91": "TIME_LIMIT", "C92": "SUITE_STOPPED"}


WAITING = "lambda text: int(time.monotonic() * 1e6)"
QUIET = "lambda text: 0"


@pytest.mark.parametrize(
    ("psi", "gate", "least_s"),
    [(WAITING, r"CPU pressure (1\.00|0\.9\d) above 0\.10", 1.5), (QUIET, "clean", 0.3)],
    ids=["busy", "quiet"],
)
@pytest.mark.parametrize("run", ["hang", "lambda ctx: time.sleep(3600)"], ids=["not interruptible", "interruptible"])
def test_at_a_limit_the_document_says_whether_the_machine_was_busy(
    folder: Path, run: str, psi: str, gate: str, least_s: float
) -> None:
    """The limit is four times as long where something waits for a CPU all the time."""
    script = f"""
        from envkit.smoke import pressure
        pressure.psi_total_us = {psi}
        supervised(check("C91", {run}), check("C92", {run}))
    """
    exit_code, document = ended(start(folder, script))
    assert exit_code == 0
    late = document["checks"]
    assert late[0]["reason"]["code"] == "TIME_LIMIT"
    assert late[1]["reason"]["code"] == ("SUITE_STOPPED" if run == "hang" else "TIME_LIMIT")
    # The clock of the stand-in and that of the check are read one after the other.
    assert all(re.fullmatch(gate, item["noise"]["gate"]) for item in late), late
    assert late[0]["noise"]["window_s"] >= least_s * (1 if run == "hang" else 0.5)
