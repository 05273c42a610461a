"""A function in a forked process: its output, its end and its limit, as those of a new interpreter."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.payloads import module
from tests.support.pids import all_end

forked = module("forked")


def say(text: str) -> Callable[[], object]:
    return lambda: print(text)


@pytest.mark.parametrize(
    ("work", "outcome", "text"),
    [
        (say('first\n{"total": 3}'), "answered", '{"total": 3}'),
        (say("raised an error"), "answered", "raised an error"),
        (lambda: None, "answered", ""),
        (lambda: 1 / 0, "failed", "ZeroDivisionError: division by zero"),
        (lambda: sys.exit(3), "failed", "SystemExit: 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "failed", ""),
        (lambda: os.system("echo from a program"), "answered", "from a program"),
    ],
)
def test_how_it_ends(work: Callable[[], object], outcome: str, text: str) -> None:
    found = forked.run(work, 20.0)
    assert found["outcome"] == outcome
    assert found["text"].strip().endswith(text)


def test_a_json_object_on_the_last_line_is_merged_in() -> None:
    assert forked.run(say('{"total": 3}'), 20.0)["total"] == 3


def test_the_exit_code_of_a_signal_is_the_one_that_subprocess_gives() -> None:
    assert forked.run(lambda: os.kill(os.getpid(), signal.SIGABRT), 20.0)["returncode"] == -signal.SIGABRT


def test_one_that_hangs_is_killed_with_what_it_started_and_its_words_are_kept(tmp_path: Path) -> None:
    def hang() -> None:
        other = subprocess.Popen(["sleep", "3600"])
        (tmp_path / "pids").write_text(f"{os.getpid()} {other.pid}")
        print("ready", flush=True)
        # It holds the interpreter's lock, and no signal but SIGKILL ends it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).sleep(3600)

    begin = time.monotonic()
    found = forked.run(hang, 0.5)
    assert (found["outcome"], found["said"]) == ("timeout", "ready")
    assert time.monotonic() - begin < 10
    assert all_end([int(pid) for pid in (tmp_path / "pids").read_text().split()], within_s=10)


def test_much_output_does_not_block_it() -> None:
    found = forked.run(say("x" * (1 << 20) + "\nlast"), 20.0)
    assert (found["outcome"], found["text"]) == ("answered", "last")


def test_nothing_that_waits_in_a_buffer_is_printed_twice() -> None:
    code = (
        "from envkit.smoke import forked\nprint('before')\nprint(forked.run(lambda: print('inside'), 20.0)['text'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "before\ninside\n"


@pytest.mark.parametrize("fault", [OSError("not permitted"), AttributeError("memfd_create")])
def test_where_no_fork_can_be_made_there_is_no_answer(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> Any:
        raise fault

    monkeypatch.setattr(forked.os, "memfd_create", refuse)
    assert forked.run(say("x"), 20.0) is None
