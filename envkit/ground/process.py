"""Run client programs with a time limit, read their output line by line, and end them with all their children."""

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

_GRACE_S = 3.0  # between SIGINT and SIGKILL, for a client to cancel its work in an engine
_POLL_S = 0.2  # between checks of an event
_KILLED_S = 1.0  # enough for a killed program to exit, unless it is stuck in the kernel


class StoppedError(Exception):
    """The program was stopped on request: other work failed, or its result is no longer needed."""


class NoAnswerError(EnvironmentProblem):
    """A program did not end within its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a client program ended; `timed_out` when the limit ended it."""

    code: int
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The exit code and the output of a client program."""

    code: int
    out: str
    err: str


def ask(argv: Sequence[str], *, patience_s: float, stdin: bytes = b"", folder: str | None = None) -> Answer:
    """Run a short program and return its output.

    Args:
        argv: the program and its arguments.
        patience_s: time limit after which it is killed.
        stdin: its input.
        folder: its working folder; None = that of this process.

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
            # A program in a hanging driver call cannot be killed, so the wait for it has a limit.
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
    """Start a program for the length of a `with`; `end` ends it if it still runs then, and after every exception.

    A signal during the start is raised only after the program is registered here. Otherwise `subprocess.Popen` could
    lose track of the program, or its `__exit__` would wait for it.

    Args:
        argv: the program and its arguments, without a shell.
        end: ends the program and its children; called before the program is waited for.
        options: of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        with signals.deferred():
            process = stack.enter_context(subprocess.Popen(list(argv), **options))  # noqa: S603 - no shell

            def leave(kind: type[BaseException] | None, *_: object) -> None:
                # A program that has ended may have left children in its group.
                if kind is not None or process.poll() is None:
                    end(process)

            # Pushed last, so that it runs before Popen's own exit, which waits for the program.
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
    """Run a program and pass every line of its output (stdout and stderr, in order) to `on_line`.

    At the limit, and if any exception is raised (by a signal, for example), the program gets SIGINT, which makes engine
    clients cancel their work, and SIGKILL after three seconds. It runs in its own session, so Ctrl-C in the terminal
    reaches it only through this function.

    Args:
        argv: the program and its arguments.
        on_line: called with each line.
        stdin: its input; None = empty.
        env: its variables; None = those of this process.
        limit_s: time limit.
        on_start: called with the process ID.
        stop: an event with which another thread ends the program.

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
    """End a program and its children: SIGINT, SIGKILL after three seconds, then SIGKILL for remaining children.

    A container's process has its own session and survives the client that started it, so the processes below the
    program are listed before it ends.
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
    """Return the IDs of all visible processes.

    `Path.glob` would call stat for each and raise ProcessLookupError if a process ends meanwhile.
    """
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def tree(pid: int) -> dict[int, str]:
    """Return the processes below `pid` and those of the session that it leads, with start times in clock ticks.

    When a process ends, its children get another parent, but they stay in the session.
    """
    children: dict[int, list[int]] = {}
    for process in pids():
        fields = identity.stat_fields(process)
        if not fields:
            continue
        # proc_pid_stat(5): state, parent, process group and session.
        parent, _, session = map(int, fields[1:4])
        children.setdefault(parent, []).append(process)
        if session == pid != process:
            children.setdefault(pid, []).append(process)
    processes: dict[int, str] = {}
    waiting = list(children.get(pid, []))
    while waiting:
        descendant = waiting.pop()
        if descendant not in processes:
            processes[descendant] = identity.start_ticks(descendant)
            waiting += children.get(descendant, [])
    return processes


def kill_all(pid: int) -> None:
    """SIGKILL a program that leads a session, and its children.

    It may start more children meanwhile, so this is repeated until there are no new ones.
    """
    seen = tree(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # PermissionError: a setuid program, such as newuidmap, runs as another user.
        os.killpg(pid, signal.SIGKILL)
    kill(seen)
    while new := {descendant: started for descendant, started in tree(pid).items() if descendant not in seen}:
        kill(new)
        seen |= new


def kill(processes: Mapping[int, str]) -> None:
    """SIGKILL processes, except those whose ID now belongs to another process."""
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
    """Pass lines on until the output ends; return True if the deadline was reached first."""
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
                left = _POLL_S if left is None else min(left, _POLL_S)
            if not ready.select(left):
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)  # the usual capacity of a pipe (pipe(7))
            for line in lines.feed(decoder.decode(piece)) if piece else lines.rest():
                on_line(line)
            if not piece:
                return False
