"""Run a training unchanged and record it, or record one that is already running, from outside."""

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
from envkit.watch.family import Below, Container, Tree
from envkit.watch.files import Folder
from envkit.watch.model import Record

if TYPE_CHECKING:
    from envkit.pipeline.running import Ready
    from envkit.run.session import Session
    from envkit.watch.family import Family

INJECTED = Path(__file__).parent / "injected"
MODULE = "/run/envkit-watch"
"""The path of `INJECTED` in a container."""
_FOLDER = "ENVKIT_WATCH_DIR"
_PERIOD_S = 0.5  # shorter than the time in which a ring of events fills
_LOOK_S = 0.25  # mean time between looks at the threads that train
_READ_S = 30.0  # limit for reading what is left after the end; a training's own events take less than a second
_GOLDEN = 0.6180339887498949  # multiples of it are spread evenly, however many there are
# Samples may take at most a fiftieth of the time: with thousands of processes they are taken less often.
_SAMPLE_SPACING = 50


def run(command: Sequence[str], *, stdout: int | None = None, clock: Callable[[], float] = time.monotonic) -> Record:
    """Run a command to its end and return its record.

    It has the input, output, working folder and process group of this process, whose signals are passed on to it.
    `stdout` is another file descriptor for its output.

    Raises:
        UsageError: the program does not exist.
        EnvironmentProblem: no folder for temporary files is writable.
    """
    with _folder() as folder:

        def start(before: child.Mask) -> tuple[child.Child, Family]:
            process = child.start(command, _environment(os.environ, folder), stdout, before)
            return process, Tree(process.pid)

        return _recorded(start, folder, command, clock)


def run_inside(
    ready: Ready,
    attach: Callable[[Session], int],
    command: Sequence[str],
    *,
    stdout: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Record:
    """Run a session of an image to its end and return its record.

    Args:
        ready: the session as `envkit run` makes it.
        attach: runs a session with this process's streams and returns its exit code, or becomes its client.
        command: the command, for the record.
        stdout: another file descriptor for its output.
        clock: a monotonic clock in seconds.

    Raises:
        EnvkitError: the container cannot be created.
        EnvironmentProblem: no folder for temporary files is writable.
    """
    with _folder() as folder:
        session, path = with_probes(ready, folder)
        container = Container(path)
        shared = ready.runner.isolation.missing
        forked: list[child.Forked] = []

        def start(before: child.Mask) -> tuple[child.Child, Family]:
            forked.append(child.Forked(lambda: attach(session), stdout, before))
            return forked[0], Below(forked[0].pid) if "processes" in shared else container

        record = _recorded(start, folder, command, clock)
        forked[0].close()
        if "shared-memory" not in shared:
            record = replace(record, machine=replace(record.machine, shm_bytes=session.shm_mb << 20))
        return replace(record, image=session.image.typed)


def with_probes(ready: Ready, folder: Path) -> tuple[Session, str]:
    """Return a session in which every Python process records into `folder`, and the folder's path in the container.

    Raises:
        UsageError: a path has a character that engines read as a separator.
    """
    session, path = ready.session, f"/run/{folder.name}"
    mounts = (
        parse_mount(f"{INJECTED}:{MODULE}", MODULE, read_only=True, option="the module of envkit watch"),
        parse_mount(f"{folder}:{path}", path, read_only=False, option="TMPDIR"),
    )
    env = dict(session.env) | _variables(MODULE, path, ready.env.get("PYTHONPATH"))
    return replace(session, mounts=(*session.mounts, *mounts), env=tuple(env.items())), path


def _recorded(
    start: Callable[[child.Mask], tuple[child.Child, Family]],
    folder: Path,
    command: Sequence[str],
    clock: Callable[[], float],
) -> Record:
    """Start a training, observe it to its end, and return its record.

    While the training runs, signals are for it. Before and after, they end the command.

    Args:
        start: starts it; its argument is the mask of signals that the training gets.
        folder: the folder into which it writes.
        command: the command, for the record.
        clock: a monotonic clock in seconds.
    """
    started, begin = datetime.now(UTC), clock()
    session, opened = sampling.open_nvml(), Folder(folder)
    with child.blocked() as before:
        process, family = start(before)
        collector = Collector(opened, begin, family, clock)
        sampler = sampling.Sampler(family, begin, session, clock)
        due, events_due = begin, begin + _PERIOD_S
        for pause in looks():
            if not child.wait(process, pause):
                break
            collector.look()
            if (now := clock()) < events_due:
                continue
            events_due = now + _PERIOD_S - _LOOK_S  # the look that comes next may be late
            collector.collect(_PERIOD_S)
            now = clock()
            if now >= due:
                waiting, steps = collector.since_last(sampler.since())
                sampler.take(collector.ranks(), collector.pids(), waiting, steps)
                due = now + (clock() - now) * _SAMPLE_SPACING
        child.drain()
    seconds = clock() - begin
    collector.finish(_READ_S)
    code = process.returncode or 0
    record = Record(
        command=tuple(command),
        started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
        seconds=seconds,
        exit_code=code if code >= 0 else 128 - code,  # of a signal as shells report it
        injected=True,
        machine=sampling.machine(session),
        processes=collector.processes(_READ_S),
        samples=tuple(sampler.taken),
        version=envkit.__version__,
        unread=collector.unread,
    )
    collector.close()
    return record


def looks() -> Iterator[float]:
    """Yield pauses between looks, of which no two in a row are equal, so that a step as long as one is seen whole."""
    part = 0.0
    while True:
        part = (part + _GOLDEN) % 1.0
        yield _LOOK_S * (0.5 + part)


def attach(
    pid: int,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Record:
    """Record a running process and its descendants from outside, for `seconds` or until it ends.

    Raises:
        UsageError: the process does not exist.
        InterruptedRun: on SIGHUP or SIGTERM. SIGINT ends the recording early.
    """
    # The kernel reuses process IDs; the start time tells a later process from this one.
    ticks = identity.start_ticks(pid)
    if not ticks:
        raise UsageError(f"there is no process with the ID {pid}", hint="pgrep -af python")
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
        samples=tuple(sampler.taken[1:]),  # counters have no earlier value in the first sample
        version=envkit.__version__,
    )


def _environment(outer: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the training."""
    return dict(outer) | _variables(str(INJECTED), str(folder), outer.get("PYTHONPATH"))


def _variables(module: str, folder: str, path: str | None) -> dict[str, str]:
    """Return the variables for the probes, whose folder comes first in PYTHONPATH."""
    # An empty entry in PYTHONPATH means the current folder, so none is added.
    return {"PYTHONPATH": os.pathsep.join([module, *([path] if path else [])]), _FOLDER: folder}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(paths.scratch())
        except OSError as error:
            raise EnvironmentProblem(
                f"no folder for temporary files is writable: {error.strerror or error}",
                hint="set TMPDIR to a folder of your own",
            ) from error
        yield folder


def _arguments(pid: int) -> list[str]:
    """Return the program and the first argument of a process; further arguments may contain secrets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
    return [word for word in words[:2] if word]
