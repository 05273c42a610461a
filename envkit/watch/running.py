"""Run a training unchanged and record it; or record one that runs already, from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import envkit
from envkit.ground import identity, paths
from envkit.ground.errors import EnvironmentProblem, InterruptedRun, UsageError
from envkit.run.session import parse_mount
from envkit.watch import child, sampling
from envkit.watch.events import Collector
from envkit.watch.family import Container, Tree
from envkit.watch.model import Record

if TYPE_CHECKING:
    from envkit.pipeline.running import Ready
    from envkit.run.session import Session
    from envkit.watch.family import Family

INJECTED = Path(__file__).parent / "injected"
MODULE = "/run/envkit-watch"
"""Where a container finds `INJECTED`."""
_FOLDER = "ENVKIT_WATCH_DIR"
_PERIOD_S = 0.5  # a ring of events must not fill within it
_WORTH = 50  # a sample may take a fiftieth of the time between two: a machine may have thousands of processes


def run(command: Sequence[str], *, stdout: int | None = None, clock: Callable[[], float] = time.monotonic) -> Record:
    """Run a command to its end and return its record.

    Its input, output, folder and process group are those of this process; signals that this process gets are passed
    on. `stdout` is another file descriptor for its output.

    Raises:
        UsageError: the program does not exist.
        EnvironmentProblem: no folder for temporary files can be written.
    """
    with _folder() as folder, child.blocked() as before:

        def start() -> tuple[child.Child, Family]:
            # The signals are blocked here, and must not be in the training.
            made = child.start(command, _environment(os.environ, folder), stdout, before)
            return made, Tree(made.pid)

        return _recorded(start, folder, command, clock)


def run_inside(
    made: Ready,
    attach: Callable[[Session], int],
    command: Sequence[str],
    *,
    stdout: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Record:
    """Run a session of an image to its end and return its record.

    Args:
        made: the session as `envkit run` has it.
        attach: runs a session with this process's streams and returns its exit code, or becomes its client.
        command: for the record.
        stdout: another file descriptor for its output.
        clock: seconds.

    Raises:
        EnvkitError: the container cannot be made.
        EnvironmentProblem: no folder for temporary files can be written.
    """
    with _folder() as folder, child.blocked() as before:
        session, path = with_probes(made, folder)
        family = Container(path)
        forked: list[child.Forked] = []

        def start() -> tuple[child.Child, Family]:
            forked.append(child.Forked(lambda: attach(session), stdout, before))
            return forked[0], family

        record = _recorded(start, folder, command, clock)
        forked[0].close()
        # The container's own, which are gone now.
        own = replace(record.machine, shm_bytes=session.shm_mb << 20)
        return replace(record, machine=own, image=session.image)


def with_probes(made: Ready, folder: Path) -> tuple[Session, str]:
    """Return a session in which every Python is recorded into a folder, and where the container finds that folder.

    Raises:
        UsageError: a path has a character that engines read as a separator.
    """
    session, path = made.session, f"/run/{folder.name}"
    mounts = (
        parse_mount(f"{INJECTED}:{MODULE}", MODULE, read_only=True, option="the module of envkit watch"),
        parse_mount(f"{folder}:{path}", path, read_only=False, option="TMPDIR"),
    )
    env = dict(session.env) | _variables(MODULE, path, made.env.get("PYTHONPATH"))
    return replace(session, mounts=(*session.mounts, *mounts), env=tuple(env.items())), path


def _recorded(
    start: Callable[[], tuple[child.Child, Family]], folder: Path, command: Sequence[str], clock: Callable[[], float]
) -> Record:
    """Start a training, follow it to its end, and return its record."""
    started, begin = datetime.now(UTC), clock()
    session = sampling.open_nvml()
    process, family = start()
    collector = Collector(folder, begin, family)
    sampler = sampling.Sampler(family, begin, session, clock)
    due = begin
    while child.wait(process, _PERIOD_S):
        collector.collect()
        looked = clock()
        if looked >= due:
            waiting, steps = collector.since_last(sampler.since())
            sampler.take(collector.ranks(), collector.pids(), waiting, steps)
            due = looked + (clock() - looked) * _WORTH
    seconds = clock() - begin
    collector.collect()
    code = process.returncode or 0
    record = Record(
        command=tuple(command),
        started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
        seconds=seconds,
        exit_code=code if code >= 0 else 128 - code,
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
        UsageError: the process does not exist.
        InterruptedRun: of SIGHUP or SIGTERM. SIGINT ends the recording early.
    """
    ticks = identity.start_ticks(pid)
    if not ticks:
        raise UsageError(f"no process has the id {pid}", hint="pgrep -af python")
    started, start = datetime.now(UTC), clock()
    session = sampling.open_nvml()
    sampler = sampling.Sampler(Tree(pid), start, session, clock)
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
    """Return the environment of the training."""
    return dict(outer) | _variables(str(INJECTED), str(folder), outer.get("PYTHONPATH"))


def _variables(module: str, folder: str, path: str | None) -> dict[str, str]:
    """Return the variables for the probes, which come first on the path of every Python."""
    # An empty entry would mean the current folder.
    return {"PYTHONPATH": os.pathsep.join([module, *([path] if path else [])]), _FOLDER: folder}


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
