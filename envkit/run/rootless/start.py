"""Start bubblewrap, hold the command until its limits are set, and kill the container with all of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envkit.ground import identity, namespaces
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import child, tree
from envkit.run import containers
from envkit.run.model import RunLimits
from envkit.run.rootless import cgroups, seccomp
from envkit.run.rootless.owners import host_id, host_shift
from envkit.run.rootless.sandbox import Means, Sandbox
from envkit.run.rootless.terminal import Terminal, forwarded_signals, lead_terminal
from envkit.run.rootless.user import User

PROGRAM = "bwrap"
INSTALL = "apt-get install bubblewrap"
_ENTER = Path(__file__).with_name("enter.py")
_START_S = 60.0  # namespaces and mounts on a busy machine
# `Runner.probe` promises an answer within ten seconds; the four attempts of `probe` share them.
_PROBE_S = 9.0
_TAIL = 4000  # bytes at the end of stderr, from which the message of a failure is taken


@dataclass(frozen=True, slots=True)
class Started:
    """A container whose first process waits to be released."""

    process: subprocess.Popen[bytes]
    first: int  # process ID of the container's first process; 0: it was not created
    go: int  # a descriptor; writing a byte to it releases the process

    def release(self) -> None:
        """Let the first process continue."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.go, b"1")

    def kill(self) -> None:
        """Kill every process of the container."""
        # When the first process of a PID namespace ends, the kernel kills all others in it (pid_namespaces(7)).
        for pid in (self.first, self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send(self, number: int, *, first: bool) -> None:
        """Send a signal to the command: to process 1 if the command is that (`first`), else to its children.

        Otherwise process 1 is bubblewrap's own, which does not forward signals.
        """
        for pid in [self.first] if first else children(self.first):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class Streams:
    """Standard input, output and error of a command, as `subprocess.Popen` takes them."""

    stdin: int | None
    stdout: int | None
    stderr: int | None
    terminal: bool = False  # all three are one terminal, which becomes the command's controlling terminal


def session_streams(terminal: Terminal | None) -> Streams:
    """Return the streams of a session: its own terminal, or those of this process."""
    if terminal is None:
        return Streams(None, None, None)
    return Streams(terminal.theirs, terminal.theirs, terminal.theirs, terminal=True)


CAPTURED = Streams(subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE)


@contextmanager
def started(
    cell: Sandbox, means: Means, argv: Sequence[str], *, first: bool, streams: Streams = CAPTURED
) -> Iterator[Started]:
    """Start a command in a container and kill the container on exit. With `first`, the command is process 1.

    Raises:
        EnvironmentProblem: bubblewrap is missing, or cannot make the container.
    """
    status, status_writer = os.pipe()
    # Bubblewrap blocks until it can read a byte from `wait`, so the command does not run before its limits are set.
    wait, go = os.pipe()
    pids: list[int] = []

    def end(process: subprocess.Popen[bytes]) -> None:
        # kill(2) with 0, for a container that was not created, would signal this process's own group.
        for pid in (*filter(None, pids), process.pid):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    with contextlib.ExitStack() as cleanup:
        for descriptor in (status, go):
            cleanup.callback(os.close, descriptor)
        # This process's copies are closed once the child has its own. Otherwise reading `status` would never reach its
        # end.
        with passed_descriptors(status_writer, wait) as passed:
            words = ["--json-status-fd", str(status_writer), "--block-fd", str(wait)]
            rules = seccomp.program(platform.machine())
            if rules is not None:
                passed.append(memory_file(rules))
                words += ["--seccomp", str(passed[-1])]
            words += ["--as-pid-1"] if first else []
            process = cleanup.enter_context(
                child(
                    _command(cell, means, [*words, *cell.words, "--", *argv], status_writer),
                    end=end,
                    env={},  # any process in the container can read the environment of process 1
                    cwd="/",
                    stdin=streams.stdin,
                    stdout=streams.stdout,
                    stderr=streams.stderr,
                    pass_fds=passed,
                    # Ctrl-C at the terminal then signals only this process, which forwards it or kills the container.
                    start_new_session=True,
                    preexec_fn=lead_terminal if streams.terminal else None,  # safe: no other thread runs
                )
            )
        pids.append(first_process(status, process))
        yield Started(process, pids[0], go)


@contextmanager
def passed_descriptors(*descriptors: int) -> Iterator[list[int]]:
    """Yield a list of descriptors for a child, which the caller may extend, and close all of them on exit."""
    passed = list(descriptors)
    try:
        yield passed
    finally:
        for descriptor in passed:
            os.close(descriptor)


def limit(container: Started, group: cgroups.Group, user: User, limits: RunLimits) -> tuple[str, ...]:
    """Apply the limits to a waiting container and return the names of the resources that could not be limited.

    Raises:
        EnvironmentProblem: the container could not be created.
    """
    try:
        group.join(container.first)
    except ProcessLookupError as error:
        container.kill()
        raise failure(container.process.communicate()[1], "the run") from error
    unlimited: list[str] = []
    for name in group.unlimited:
        try:
            if name == "pids":
                if os.geteuid() == 0 and host_id(user.uid, host_shift()) == 0:
                    unlimited.append("the number of processes")  # the kernel exempts root from RLIMIT_NPROC
                else:
                    resource.prlimit(container.first, resource.RLIMIT_NPROC, (limits.pids, limits.pids))
            elif name == "memory":
                # The default limit is not applied per process: memory that CUDA maps but does not use may exceed it.
                if limits.memory_mb is not None:
                    size = limits.memory_mb << 20
                    resource.prlimit(container.first, resource.RLIMIT_DATA, (size, size))
                unlimited.append("memory" if limits.memory_mb is None else "total memory (only each process's own)")
            elif limits.cpus is not None:
                # Whole CPUs instead of a share of their time.
                allowed = sorted(os.sched_getaffinity(0))[: max(1, round(limits.cpus))]
                os.sched_setaffinity(container.first, allowed)
        except (OSError, ValueError):
            unlimited.append({"pids": "the number of processes", "cpu": "CPU time"}.get(name, name))
    return tuple(unlimited)


def probe(folder: Path) -> Means:
    """Find out how containers can be made here by running `true` in containers of this machine's own root.

    Raises:
        EnvironmentProblem: bubblewrap is missing or cannot make containers; the details have each attempt's error.
    """
    program = _program()
    reasons: list[str] = []
    for name in ("a", "b", "merged", "sys"):
        (folder / name).mkdir(exist_ok=True)
    # Best first: without an overlay, each run builds a tree of hard links, which takes longer.
    for means in (
        Means(entered=True, overlay=True, sysfs=True),
        Means(entered=True, overlay=True, sysfs=False),
        Means(entered=True, overlay=False, sysfs=True),
        Means(entered=False, overlay=False, sysfs=False),
    ):
        users = [] if means.entered and os.geteuid() == 0 else ["--unshare-user"]
        words = [*users, "--unshare-pid", "--cap-drop", "ALL"]
        words += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
        cell = Sandbox(
            folder=folder,
            lowers=("a", "b"),
            overlay=means.overlay,
            user=User(uid=os.geteuid(), gid=os.getegid(), home="/"),
            words=(),
        )
        true = shutil.which("true") or "/bin/true"
        try:
            done = subprocess.run(  # noqa: S603 - a list of arguments, no shell
                _command(cell, means, [*words, "--", true], None),
                capture_output=True,
                timeout=_PROBE_S / 4,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(str(error)[-200:])
            continue
        if done.returncode == 0:
            return means
        reasons.append(" ".join(done.stderr.decode(errors="replace").split())[-200:])
    closed = " && ".join(setting.command for setting in namespaces.closed_by())
    raise EnvironmentProblem(
        f"{program} cannot make containers here: {reasons[-1].rstrip(' .')}",
        hint=f"as root: {closed}" if closed else "envkit doctor",
        details=tuple(reasons),
    )


def failure(stderr: bytes, doing: str) -> EnvironmentProblem:
    """Return the error for a container that could not be created."""
    message = " ".join(stderr[-_TAIL:].decode(errors="replace").split())[-600:] or "no message"
    return EnvironmentProblem(f"{doing}: the container could not be created: {message}", hint="envkit doctor")


def deadline(limits: RunLimits) -> float:
    """Return when the time limit outside the container is reached, on `time.monotonic()`."""
    return time.monotonic() + limits.timeout_s + containers.GRACE_S


def _command(cell: Sandbox, means: Means, words: Sequence[str], status: int | None) -> list[str]:
    program = _program()
    if not means.entered:
        return [program, *words]
    task = {
        "parent": os.getpid(),
        "folder": str(cell.folder),
        "lowers": cell.lowers,
        "overlay": cell.overlay,
        "sysfs": means.sysfs,
        "uid": host_id(cell.user.uid, host_shift()),
        "gid": host_id(cell.user.gid, host_shift()),
        "shift": host_shift(),
        "network": cell.network,
        "mounts": dict(cell.mounts),
        "status": status,
        "argv": [program, *words],
    }
    # Isolated (-I) and without site (-S): no code of the user runs before the namespaces exist, and the start is
    # faster.
    return [sys.executable, "-I", "-S", str(_ENTER), json.dumps(task)]


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [below for below in tree(pid) if _parent(below) == pid]


def follow(container: Started, terminal: Terminal | None, *, first: bool) -> int:
    """Let a session's command run, with signals and its terminal, and return its exit code (128 + n for signal n).

    Raises:
        EnvironmentProblem: the container could not be created.
    """
    process = container.process
    if terminal is not None:
        os.close(terminal.theirs)  # while it is open here, reading our end never reports the end
    if not container.first:
        process.wait()
        raise failure(b"" if terminal is None else terminal.unread(), "the run")
    with forwarded_signals(lambda number: container.send(number, first=first)):
        container.release()
        if terminal is not None:
            terminal.carry(process)
        code = process.wait()
    return code if code >= 0 else 128 - code


def _parent(pid: int) -> int:
    """Return the parent of a process, 0 if the process has ended."""
    fields = identity.stat_fields(pid)
    return int(fields[1]) if fields else 0


def _program() -> str:
    path = shutil.which(PROGRAM)
    if path is None:
        raise EnvironmentProblem("bubblewrap is not installed", hint=INSTALL)
    return path


def memory_file(data: bytes) -> int:
    """Return a descriptor from which these bytes can be read."""
    descriptor = os.memfd_create("envkit", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def first_process(status: int, process: subprocess.Popen[bytes]) -> int:
    """Return the process ID that bubblewrap or the supervisor reports, 0 if it ended before that.

    Raises:
        EnvironmentProblem: it reports that the container could not be created.
    """
    data, until = b"", time.monotonic() + _START_S
    while b"\n" not in data:
        ready, _, _ = select.select([status], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(status, 4096) if ready else b""
        if not piece:
            if not ready:
                process.kill()
            return 0
        data += piece
    with contextlib.suppress(ValueError, KeyError, TypeError):
        # `enter.py` reports `error`; bubblewrap and `supervise.py` report `child-pid`.
        message = json.loads(data.split(b"\n", 1)[0])
        if "error" in message:
            raise failure(str(message["error"]).encode(), "the run")
        return int(message["child-pid"])
    return 0
