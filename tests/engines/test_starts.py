"""A signal at any line of code between the start of a program and its end: it is an error, and the program is gone."""

import contextlib
import linecache
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, KeysView
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import envkit
from envkit.ground import process, signals
from envkit.ground.errors import EnvkitError, InterruptedRun
from envkit.image.name import image_name
from envkit.lock import child
from envkit.run.host import HostRunner
from envkit.run.model import RunLimits
from envkit.run.rootless import proot
from tests.support.heard import Heard

_PROGRAM = ["sleep", "600"]  # a start that waits for its end is ended by the time limit of the tests
_ENVKIT = str(Path(envkit.__file__).parent)
_STARTING = {(subprocess.__file__, "__init__"), (subprocess.__file__, "_execute_child")}


def on_the_host() -> None:
    limits = RunLimits(timeout_s=1200)
    HostRunner().run(image_name(""), _PROGRAM, {}, gpus=None, limits=limits, reporter=Heard())


def followed() -> None:
    process.follow(_PROGRAM, lambda _: None)


def solving() -> None:
    child.run(_PROGRAM, env=dict(os.environ), what="the test", check=lambda: None)


def traced_by_proot() -> None:
    while True:  # it ends by itself
        with contextlib.suppress(EnvkitError):  # it may not work here, but it may leave nothing either
            proot.probe()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.long
@pytest.mark.requirement("R29")
@pytest.mark.parametrize("program", [on_the_host, followed, solving, traced_by_proot])
def test_a_signal_at_any_line_ends_the_program(program: Callable[[], None]) -> None:
    before = process.tree(os.getpid()).keys()
    lines = _lines(program)
    assert len(lines) > 50
    for number in sorted({lines.index(line) for line in lines}):
        _lines(program, at=number)
        assert not _left(before), lines[number]


def _lines(program: Callable[[], None], *, at: int | None = None) -> list[str]:
    """The lines of envkit that `program` runs until SIGTERM comes: at line `at`, else after some time.

    Of Python's own code only the start of a process is looked at. `subprocess.Popen.wait` can lose its lock to a signal
    between two certain lines; signals come while it sleeps.
    """
    seen: list[str] = []
    handled: list[bool] = []
    signals.raise_on(signal.SIGTERM)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        code = frame.f_code
        if not code.co_filename.startswith(_ENVKIT) and (code.co_filename, code.co_name) not in _STARTING:
            return None
        handled.extend([True] if code.co_name == "interrupt" else [])
        # Python handles signals after calls and jumps, never at a `try:`, and may not count that as part of a `with`.
        if event == "line" and not handled and linecache.getline(code.co_filename, frame.f_lineno).strip() != "try:":
            seen.append(f"{code.co_filename}:{frame.f_lineno}")
            if len(seen) - 1 == at:
                signal.raise_signal(signal.SIGTERM)
        return trace

    outside = sys.gettrace()

    def end() -> None:
        if signals.received() is None:  # a second signal ends the tests
            os.kill(os.getpid(), signal.SIGTERM)

    # Two calls can differ by some lines, so line `at` may be one that is never reached.
    timer = threading.Timer(1.0 if at is None else 5.0, end)
    timer.start()
    sys.settrace(trace)
    try:
        program()
    except InterruptedRun:
        return seen
    finally:
        sys.settrace(outside)
        timer.cancel()
        timer.join()
    raise AssertionError(f"the signal at {seen[-1]} is lost")


def _left(before: KeysView[int]) -> set[int]:
    """The processes below this one that are new, without those that ended and wait for somebody to ask.

    A Docker engine that was started for other tests is below this process, and other tests start containers there.
    """
    new = process.tree(os.getpid()).keys() - before
    return {pid for pid in new if _stat(pid)[:1] not in ([], ["Z"]) and before.isdisjoint(_above(pid))}


def _above(pid: int) -> Iterator[int]:
    while pid > 1 and (stat := _stat(pid)):
        pid = int(stat[1])
        yield pid


def _stat(pid: int) -> list[str]:
    """The state of a process, its parent, and what else the kernel tells; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
