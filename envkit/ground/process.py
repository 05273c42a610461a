"""Run a client program and read its output line by line, with a time limit and orderly termination."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from envkit.ground import identity, signals
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.text import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_GRACE_S = 3.0  # for a client to stop what it started elsewhere
_GLANCE_S = 0.2  # between looks at an event
_KILLED_S = 1.0  # a killed program is gone at once, unless the kernel does not let it go


class StoppedError(Exception):
    """This work was asked to end: another piece of it failed, or its result is no longer needed."""


class NoAnswerError(EnvironmentProblem):
    """A program did not end within its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a client program ended; `timed_out` when the limit ended it."""

    code: int
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client program said."""

    code: int
    out: str
    err: str


def ask(argv: Sequence[str], *, patience_s: float, stdin: bytes = b"", folder: str | None = None) -> Answer:
    """Run a program that answers at once, and give what it printed.

    Args:
        argv: the program and its arguments.
        patience_s: seconds after which it is killed.
        stdin: what it reads.
        folder: in which it runs; None = this process's.

    Raises:
        NoAnswerError: it did not end within `patience_s`.
        EnvironmentProblem: it cannot be run.
    """
    name = Path(argv[0]).name
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder)  # noqa: S603 - as below
    except OSError as error:
        raise EnvironmentProblem(
            f"{argv[0]} cannot be run: {error.strerror or error}", hint=f"apt-get install {name}"
        ) from error
    try:
        out, err = process.communicate(stdin, patience_s)
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{' '.join((name, *argv[1:3]))} did not answer within {patience_s:.0f} s", hint=f"{name} info"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            # A program in a call of a driver that hangs cannot be killed: waiting for it would hang this one too.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    return Answer(code=process.returncode, out=out.decode(errors="replace"), err=err.decode(errors="replace"))


@contextlib.contextmanager
def child(
    argv: Sequence[str], *, end: Callable[[subprocess.Popen[bytes]], object], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program; `end` ends it if it still runs when the block is left, and after every exception.

    A signal that comes during the start raises only when the program is known here. Otherwise `subprocess.Popen` would
    forget the program, or its `__exit__` would wait for it, as long as it runs.

    Args:
        argv: its arguments; they do not pass through a shell.
        end: ends the program and all that it started; called before the program is waited for.
        options: of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        with signals.held():
            process = stack.enter_context(subprocess.Popen(list(argv), **options))  # noqa: S603 - no shell

            def leave(kind: type[BaseException] | None, *_: object) -> None:
                # A program that ended can have left others in its group.
                if kind is not None or process.poll() is None:
                    end(process)

            stack.push(leave)
        yield process


def follow(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    stdin: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    limit_s: float | None = None,
    on_start: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> Ended:
    """Run a program and hand every line of its output (both streams, as they come) to `on_line`.

    When the limit is reached, or an exception passes through (a signal's, too), the program gets SIGINT, which
    makes engine clients cancel their work, then SIGKILL after three seconds. It runs in a session of its own, so a
    Ctrl-C on the terminal reaches it through this function only. `on_start` is told the process id. An event that
    another thread sets, `stop`, ends the program in the same way.

    Raises:
        OSError: the program cannot be started.
        StoppedError: `stop` was set.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with child(
        argv,
        end=end,
        stdin=stdin if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        start_new_session=True,
    ) as process:
        if on_start is not None:
            on_start(process.pid)
        timed_out = _read(process, on_line, deadline, stop)
        if timed_out:
            end(process)
        return Ended(code=process.wait(), timed_out=timed_out)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started: SIGINT, after three seconds SIGKILL, and SIGKILL for what outlived it.

    A container's process has a session of its own and survives the client that made it, so the tree below the
    program is noted first.
    """
    below = tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        kill_all(process.pid)
        process.wait()
    kill(below)


def pids() -> list[int]:
    """Return the IDs of all processes that this one can see.

    Not `Path.glob`: it stats what it lists, and raises ProcessLookupError if a process ends meanwhile.
    """
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def tree(pid: int) -> dict[int, str]:
    """The processes below `pid` and those of the session that it leads, each with its start time in clock ticks.

    A process whose parent has ended is below another one, but it stays in its session.
    """
    children: dict[int, list[int]] = {}
    for own in pids():
        try:
            stat = Path(f"/proc/{own}/stat").read_text()
            parent, _, session = map(int, stat.rpartition(")")[2].split()[1:4])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(own)
        if session == pid != own:
            children.setdefault(pid, []).append(own)
    processes: dict[int, str] = {}
    waiting = list(children.get(pid, []))
    while waiting:
        descendant = waiting.pop()
        if descendant not in processes:
            processes[descendant] = identity.start_ticks(descendant)
            waiting += children.get(descendant, [])
    return processes


def kill_all(pid: int) -> None:
    """SIGKILL a program that leads a session, and all that it started.

    What it starts meanwhile was in no list yet, so the list is made again until nothing new is in it.
    """
    seen = tree(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill(seen)
    while new := {descendant: started for descendant, started in tree(pid).items() if descendant not in seen}:
        kill(new)
        seen |= new


def kill(processes: Mapping[int, str]) -> None:
    """SIGKILL those of the processes that are still the same ones."""
    for pid, started in processes.items():
        if started and identity.start_ticks(pid) == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _read(
    process: subprocess.Popen[bytes],
    on_line: Callable[[str], None],
    deadline: float | None,
    stop: threading.Event | None,
) -> bool:
    """Pass lines on until the output ends; True when the deadline came first."""
    assert process.stdout is not None
    lines, decoder = Lines(), codecs.getincrementaldecoder("utf-8")("replace")
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return True
            if stop is not None:
                if stop.is_set():
                    raise StoppedError
                left = _GLANCE_S if left is None else min(left, _GLANCE_S)
            if not ready.select(left):
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            for line in lines.feed(decoder.decode(piece)) if piece else lines.rest():
                on_line(line)
            if not piece:
                return False
