"""What runs below `watch` runs as it does without: exit code, output, signals, path, and other start-up modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ENVKIT = [sys.executable, "-m", "envkit", "watch"]


def watch(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = dict(os.environ) | (env or {})
    return subprocess.run([*ENVKIT, *words], capture_output=True, text=True, check=False, env=variables, timeout=120)


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.long), 3])
def test_the_exit_code_is_the_commands(code: int) -> None:
    assert watch("--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.long
def test_a_command_that_a_signal_ended_has_its_number_and_128() -> None:
    assert watch("--", "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


def test_stdout_is_the_commands_alone() -> None:
    done = watch("--", "sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n\nwatch: no training seen")


@pytest.mark.long
def test_with_json_stdout_is_the_document_alone() -> None:
    done = watch("--json", "--", "sh", "-c", "echo out")
    assert json.loads(done.stdout)["judgment"]["answer"] == "no training seen"
    assert done.stderr.startswith("out\n")


@pytest.mark.long
def test_a_program_that_is_not_there_is_a_usage_error() -> None:
    done = watch("--", "no-such-program")
    assert (done.returncode, done.stderr) == (
        2, "error: no-such-program: no such program\n\nhint: command -v no-such-program\n"
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "missing COMMAND"),
        (("python", "train.py"), "missing COMMAND"),
        (("image:tag", "other", "--", "python"), "unexpected argument 'other'"),
        (("--data", "/none", "--", "python"), "--data needs an IMAGE"),
        (("--advise-only", "1", "--", "python"), "COMMAND and --advise-only contradict each other"),
        (("--seconds", "3", "--", "python"), "--seconds needs --advise-only"),
        (("--report", "pdf=a", "--", "python"), "this command only writes html=FILE"),
        (("--compare", "/none/a.json", "/none/b.json"), "/none/a.json: no such file"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: tuple[str, ...], message: str) -> None:
    done = watch(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "hint: " in done.stderr


SHOW = "import json, os, sys; print(json.dumps({'path': sys.path, 'mine': getattr(sys, 'mine', None)}))"


def python(code: str, **env: str) -> Any:
    return json.loads(watch("--", sys.executable, "-c", code, env=env).stdout)


@pytest.mark.long
def test_the_path_of_python_is_the_same() -> None:
    plain = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    assert python(SHOW) == json.loads(plain.stdout)


def test_another_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = __file__")
    found = python(SHOW, PYTHONPATH=str(tmp_path))
    assert found["mine"] == str(tmp_path / "sitecustomize.py")


@pytest.mark.long
def test_another_sitecustomize_that_fails_fails_as_it_does_without(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    done = watch("--", sys.executable, "-c", "print('ran')", env={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "ran\n"
    assert "ZeroDivisionError" in done.stderr


def wait_for(path: Path) -> None:
    """Wait until a started program says that it runs."""
    while not path.exists():
        time.sleep(0.01)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGUSR1))]
)
def test_signals_reach_the_command_once(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, time\n"
        "came = []\n"
        f"signal.signal({int(number)}, lambda n, _: came.append(n))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "while not came: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"  # a second one would come within it
        "print(came); sys.exit(7)\n"
    )
    with subprocess.Popen(
        [*ENVKIT, "--", sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(ready)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert (out.decode(), process.returncode) == (f"[{int(number)}]\n", 7)


@pytest.mark.long
def test_no_signal_is_blocked_in_the_command() -> None:
    done = watch("--", "sh", "-c", "grep SigBlk /proc/self/status")
    assert int(done.stdout.split()[1], 16) == 0


@pytest.mark.long
def test_a_process_is_observed_from_outside_and_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            out = tmp_path / "a.json"
            done = watch("--advise-only", str(process.pid), "--seconds", "2", "-o", str(out))
            assert process.poll() is None
        finally:
            process.kill()
    assert done.returncode == 0
    tree = json.loads(out.read_text())
    assert (tree["injected"], tree["exit_code"]) == (False, None)
    assert max(one["cpus"] for one in tree["samples"]) > 0


@pytest.mark.long
def test_a_process_that_is_not_there_is_a_usage_error() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    done = watch("--advise-only", str(process.pid))
    assert (done.returncode, f"there is no process with the ID {process.pid}" in done.stderr) == (2, True)
