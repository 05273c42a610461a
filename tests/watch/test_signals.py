"""`watch` ends on signals at any time: while the job runs they are for the job, after its end for `watch`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envkit.watch.model import read

# The command line, with a reader that waits for ever after the job's end.
_STUCK = """
import pathlib, sys, time
from envkit.watch import events

def wait(self, seconds):
    pathlib.Path(sys.argv.pop()).touch()
    time.sleep(3600)

events.Collector.{name} = wait
from envkit.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["finish", pytest.param("processes", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_after_the_jobs_end_ends_the_command(tmp_path: Path, name: str, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    code = _STUCK.replace("{name}", name)
    command = [sys.executable, "-c", code, "watch", "--", "true"]
    env = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([*command, str(ready)], stderr=subprocess.PIPE, env=env) as process:
        while not ready.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


@pytest.mark.parametrize("name", ["1-1.ring", pytest.param("1-1.facts", marks=pytest.mark.long)])
def test_a_pipe_of_the_job_is_not_waited_for(tmp_path: Path, name: str) -> None:
    code = f"import os; os.mkfifo(os.path.join(os.environ['ENVKIT_WATCH_DIR'], {name!r}))"
    out = tmp_path / "record.json"
    command = [sys.executable, "-m", "envkit", "watch", "-o", str(out), "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"note: {name} of the job was not read: is a pipe, not a regular file" in done.stderr
    assert read(out).unread == ((name, "is a pipe, not a regular file"),)


@pytest.mark.long
def test_a_ring_that_is_cut_ends_nothing() -> None:
    """A reader with a mapping of it would end with SIGBUS."""
    code = (
        "import os, time\n"
        "path = os.path.join(os.environ['ENVKIT_WATCH_DIR'], '%d-1.ring' % os.getpid())\n"
        "open(path, 'wb').write(bytes(32 * 16384)); time.sleep(2); os.truncate(path, 0); time.sleep(2)\n"
    )
    command = [sys.executable, "-m", "envkit", "watch", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "its end is missing" in done.stderr) == (0, True)
