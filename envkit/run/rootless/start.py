"""Bubblewrap started and held until its limits are set, and ended with everything in it."""

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

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import child, tree
from envkit.run import cage
from envkit.run.model import RunLimits
from envkit.run.rootless import cgroups, seccomp
from envkit.run.rootless.cell import Cell, Means
from envkit.run.rootless.owners import host_id, host_shift
from envkit.run.rootless.terminal import lead_terminal
from envkit.run.rootless.user import User

PROGRAM = "bwrap"
INSTALL = "apt-get install bubblewrap"
_ENTER = Path(__file__).with_name("enter.py")
_START_S = 60.0  # namespaces and mounts on a busy machine
# `Runner.probe` promises an answer within ten seconds; the four ways of `probe` share them.
_PROBE_S = 9.0
_SAID = 4000  # bytes of its last words


@dataclass(frozen=True, slots=True)
class Started:
    """A container whose first process waits to be let go."""

    process: subprocess.Popen[bytes]
    first: int  # process id of the container's first process
    go: int  # a descriptor: a byte lets it go

    def release(self) -> None:
        """Let it go."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.go, b"1")

    def kill(self) -> None:
        """End every process of the container."""
        # The first process of a PID namespace takes all others of it with it (pid_namespaces(7)); bubblewrap outside is
        # next.
        for pid in (self.first, self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send(self, number: int, *, first: bool) -> None:
        """Send a signal to the command: process 1 if that is what it is (`first`), else the child of bubblewrap's.

        Bubblewrap's own process 1 passes nothing on.
        """
        below = tree(self.first)
        children = [pid for pid in below if _parent(pid) == self.first]
        for pid in [self.first] if first else children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class Streams:
    """Standard input, output and error of a command, as `subprocess.Popen` takes them."""

    stdin: int | None
    stdout: int | None
    stderr: int | None
    terminal: bool = False  # all three are a terminal that the command leads


CAPTURED = Streams(subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE)
INHERITED = Streams(None, None, None)


@contextmanager
def started(
    cell: Cell, means: Means, argv: Sequence[str], *, first: bool, streams: Streams = CAPTURED
) -> Iterator[Started]:
    """Start a command in a cell; with `first` it is the container's process 1. Leaving ends all of it.

    Raises:
        EnvironmentProblem: bubblewrap is missing, or cannot make the container.
    """
    status, said = os.pipe()
    # Bubblewrap starts the command only when it can read from here, so nothing runs before its limits are set.
    wait, go = os.pipe()
    pids: list[int] = []

    def end(process: subprocess.Popen[bytes]) -> None:
        for pid in (*filter(None, pids), process.pid):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    with contextlib.ExitStack() as kept:
        for descriptor in (status, go):
            kept.callback(os.close, descriptor)
        # The child has its own copies. The end of the status pipe is seen only when nobody else can write to it.
        with handed_over(said, wait) as passed:
            words = ["--json-status-fd", str(said), "--block-fd", str(wait)]
            rules = seccomp.program(platform.machine())
            if rules is not None:
                passed.append(memory_file(rules))
                words += ["--seccomp", str(passed[-1])]
            words += ["--as-pid-1"] if first else []
            process = kept.enter_context(
                child(
                    _command(cell, means, [*words, *cell.words, "--", *argv], said),
                    end=end,
                    env={},  # any process in the container can read it, as that of process 1
                    cwd="/",
                    stdin=streams.stdin,
                    stdout=streams.stdout,
                    stderr=streams.stderr,
                    pass_fds=passed,
                    # Ctrl-C at the terminal reaches this process alone, which passes it on or ends the container.
                    start_new_session=True,
                    preexec_fn=lead_terminal if streams.terminal else None,  # no other thread runs then
                )
            )
        pids.append(first_process(status, process))
        yield Started(process, pids[0], go)


@contextmanager
def handed_over(*descriptors: int) -> Iterator[list[int]]:
    """Yield a list of descriptors for a child, to be extended; the child has copies, so these are closed at the end."""
    passed = list(descriptors)
    try:
        yield passed
    finally:
        for descriptor in passed:
            os.close(descriptor)


def limit(container: Started, group: cgroups.Group, user: User, limits: RunLimits) -> tuple[str, ...]:
    """Put a waiting container within its limits; returns what could not be limited, in words.

    Raises:
        EnvironmentProblem: the container could not be made and is gone.
    """
    try:
        group.join(container.first)
    except ProcessLookupError as error:
        container.kill()
        raise failure(container.process.communicate()[1], "the run") from error
    left: list[str] = []
    for name in group.unlimited:
        try:
            if name == "pids":
                if os.geteuid() == 0 and host_id(user.uid, host_shift()) == 0:
                    left.append("the number of processes")  # the kernel exempts root from its own limit
                else:
                    resource.prlimit(container.first, resource.RLIMIT_NPROC, (limits.pids, limits.pids))
            elif name == "memory":
                # The default limit is not applied to each process: what CUDA maps may exceed it unused.
                if limits.memory_mb is not None:
                    size = limits.memory_mb << 20
                    resource.prlimit(container.first, resource.RLIMIT_DATA, (size, size))
                left.append("memory" if limits.memory_mb is None else "memory, but for each process's own")
            elif limits.cpus is not None:
                allowed = sorted(os.sched_getaffinity(0))[: max(1, round(limits.cpus))]
                os.sched_setaffinity(container.first, allowed)
        except (OSError, ValueError):
            left.append({"pids": "the number of processes", "cpu": "processor time"}.get(name, name))
    return tuple(left)


def probe(folder: Path) -> Means:
    """How containers can be made here, by making empty ones of this machine's own root.

    Raises:
        EnvironmentProblem: bubblewrap is missing or cannot make any; the details say what each way said.
    """
    program = _program()
    reasons: list[str] = []
    for name in ("a", "b", "merged", "sys"):
        (folder / name).mkdir(exist_ok=True)
    # From the best to the least: without an overlay each run lays out a root of hard links, which takes longer.
    for means in (
        Means(entered=True, overlay=True, sysfs=True),
        Means(entered=True, overlay=True, sysfs=False),
        Means(entered=True, overlay=False, sysfs=True),
        Means(entered=False, overlay=False, sysfs=False),
    ):
        users = [] if means.entered and os.geteuid() == 0 else ["--unshare-user"]
        words = [
            *users,
            "--unshare-pid",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--cap-drop",
            "ALL",
        ]
        cell = Cell(
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
    raise EnvironmentProblem(
        f"{program} cannot make containers here: {reasons[-1]}",
        hint="allow user namespaces (sysctl -w user.max_user_namespaces=15000), or use --runner docker",
        details=tuple(reasons),
    )


def failure(stderr: bytes, doing: str) -> EnvironmentProblem:
    """The error of a container that was not made."""
    said = " ".join(stderr[-_SAID:].decode(errors="replace").split())[-600:]
    return EnvironmentProblem(f"{doing}: the container could not be made: {said or 'no message'}", hint="envkit doctor")


def deadline(limits: RunLimits) -> float:
    """When the limit outside is reached, as `time.monotonic()` counts."""
    return time.monotonic() + limits.timeout_s + cage.GRACE_S


def _command(cell: Cell, means: Means, words: Sequence[str], status: int | None) -> list[str]:
    program = _program()
    if not means.entered:
        return [program, *words]
    asked = {
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
    # Isolated (-I) and without site (-S): no variable, package or .pth file of the user runs before the namespaces are
    # made, and the start is faster.
    return [sys.executable, "-I", "-S", str(_ENTER), json.dumps(asked)]


def _parent(pid: int) -> int:
    """The parent of a process; 0 where it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


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
    """Return the process ID that bubblewrap or the supervisor tells, 0 where it ended before it had one.

    Raises:
        EnvironmentProblem: it could not make the container, and says why.
    """
    said, until = b"", time.monotonic() + _START_S
    while b"\n" not in said:
        ready, _, _ = select.select([status], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(status, 4096) if ready else b""
        if not piece:
            if not ready:
                process.kill()
            return 0
        said += piece
    with contextlib.suppress(ValueError, KeyError, TypeError):
        message = json.loads(said.split(b"\n", 1)[0])
        if "error" in message:
            raise failure(str(message["error"]).encode(), "the run")
        return int(message["child-pid"])
    return 0
