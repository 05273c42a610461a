"""Run a training unchanged and record it; or record one that runs already, from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import envkit
from envkit.ground import identity, paths
from envkit.ground.errors import EnvironmentProblem, InterruptedRun, UsageError
from envkit.watch import sampling
from envkit.watch.events import Collector
from envkit.watch.model import Record

INJECTED = Path(__file__).parent / "injected"
_PERIOD_S = 0.5  # a ring of events must not fill within it
_WORTH = 50  # a sample may take a fiftieth of the time between two: a machine may have thousands of processes
_PASSED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SI_KERNEL = 0x80  # the terminal sent the signal, to the training as well


def run(command: Sequence[str], *, stdout: int | None = None, clock: Callable[[], float] = time.monotonic) -> Record:
    """Run a command to its end and return its record.

    Its input, output, folder and process group are those of this process; signals that this process gets are passed
    on. `stdout` is another file descriptor for its output.

    Raises:
        UsageError: there is no such program.
        EnvironmentProblem: no folder for temporary files can be written.
    """
    with _folder() as folder, _blocked() as before:
        started, start = datetime.now(UTC), clock()
        session = sampling.open_nvml()
        # The signals are blocked here, and must not be in the training.
        child = _start(command, _environment(os.environ, folder), stdout, before)
        collector = Collector(folder, start)
        sampler = sampling.Sampler(child.pid, start, session, clock)
        due = start
        while _wait(child, _PERIOD_S):
            collector.collect()
            looked = clock()
            if looked >= due:
                waiting, steps = collector.since_last(sampler.since())
                sampler.take(collector.ranks(), collector.pids(), waiting, steps)
                due = looked + (clock() - looked) * _WORTH
        seconds = clock() - start
        collector.collect()
        record = Record(
            command=tuple(command),
            started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
            seconds=seconds,
            exit_code=child.returncode if child.returncode >= 0 else 128 - child.returncode,
            injected=True,
            machine=sampling.machine(session),
            processes=collector.processes(),
            samples=tuple(sampler.taken),
            version=envkit.__version__,
        )
        collector.close()
        return record


def attach(
    pid: int,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Record:
    """Record a running process and all below it from outside, for so many seconds or until it ends.

    Raises:
        UsageError: there is no such process.
        InterruptedRun: of SIGHUP or SIGTERM. SIGINT ends the recording early.
    """
    ticks = identity.start_ticks(pid)
    if not ticks:
        raise UsageError(f"no process has the id {pid}", hint="pgrep -af python")
    started, start = datetime.now(UTC), clock()
    session = sampling.open_nvml()
    sampler = sampling.Sampler(pid, start, session, clock)
    try:
        while clock() - start < seconds and identity.start_ticks(pid) == ticks:
            sleep(min(_PERIOD_S, max(0.0, seconds - (clock() - start))))
            sampler.take((), (), None, None)
    except InterruptedRun as ended:
        if ended.exit_code != 128 + signal.SIGINT:
            raise
    return Record(
        command=tuple(_arguments(pid)),
        started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
        seconds=clock() - start,
        exit_code=None,
        injected=False,
        machine=sampling.machine(session),
        samples=tuple(sampler.taken[1:]),  # the first look only begins the counting
        version=envkit.__version__,
    )


def _environment(outer: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the training: the probes come first on the path of every Python in it."""
    path = outer.get("PYTHONPATH")
    # An empty entry would mean the current folder.
    return dict(outer) | {
        "PYTHONPATH": os.pathsep.join([str(INJECTED), *([path] if path else [])]),
        "ENVKIT_WATCH_DIR": str(folder),
    }


def _start(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None, mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            list(command),
            env=dict(environment),
            stdout=stdout,
            # No thread runs yet, so this is safe between fork and exec.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509
        )
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: no such program", hint=f"command -v {command[0]}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{command[0]} cannot be run: {reason}", hint=f"ls -l {command[0]}") from error


def _wait(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until the child ended or the time is over, and pass on the signals that come; True while it runs.

    A signal of the terminal reached the child already.
    """
    end = time.monotonic() + seconds
    while child.poll() is None:
        left = end - time.monotonic()
        if left <= 0:
            return True
        came = signal.sigtimedwait((*_PASSED, signal.SIGCHLD), left)
        if came is not None and came.si_signo != signal.SIGCHLD and came.si_code != _SI_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(came.si_signo)
    return False


@contextlib.contextmanager
def _blocked() -> Iterator[set[int | signal.Signals]]:
    """Keep signals for `_wait`, which also learns who sent them; yields which were blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED, signal.SIGCHLD))
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored would not be waited for
    try:
        yield before
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with contextlib.ExitStack() as made:
        try:
            folder = made.enter_context(paths.scratch())
        except OSError as error:
            raise EnvironmentProblem(
                f"no folder for temporary files can be written: {error.strerror or error}",
                hint="set TMPDIR to a folder of your own",
            ) from error
        yield folder


def _arguments(pid: int) -> list[str]:
    """Return the program of a process; its arguments may hold secrets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
    return [word for word in words[:2] if word]
