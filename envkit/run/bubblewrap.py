"""Run images from files with bubblewrap: no daemon, and no root where user namespaces are allowed."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvkitError
from envkit.ground.paths import run_folder, scratch
from envkit.image.document import declared_volumes
from envkit.image.opening import described
from envkit.run import cage
from envkit.run.cage import Command
from envkit.run.model import STRONG, RunLimits, RunResult
from envkit.run.pipes import collect
from envkit.run.rootless import cgroups, start
from envkit.run.rootless.cell import Cell, Inside, Means, furnish
from envkit.run.rootless.host_gpus import host_gpus
from envkit.run.rootless.runner import FileRunner
from envkit.run.rootless.terminal import Terminal, forwarded_signals, new_terminal
from envkit.run.rootless.user import find_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image
    from envkit.run.rootless.stack import Stack
    from envkit.run.session import Session

_NOT_RUN = b"bwrap: execvp "  # how its message begins when the program cannot be started


class BubblewrapRunner(FileRunner):
    """Runs commands in a container of its own, with a network namespace and all limits.

    When root runs envkit, files keep their owners. Otherwise all of them belong to the only user that the container
    has.
    """

    name = "bubblewrap"
    isolation = STRONG

    def __init__(self, reporter: Reporter | None = None, *, ca_bundle: str | None = None) -> None:
        super().__init__(reporter, ca_bundle=ca_bundle)
        self._means: Means | None = None

    def probe(self) -> str | None:
        """Return None if bubblewrap can make containers here, else the reason."""
        try:
            self._find_means()
        except EnvkitError as error:
            return error.message
        except OSError as error:
            return f"no writable folder: {error.strerror or error}"
        return None

    def attach(self, session: Session, reporter: Reporter) -> int:
        """Run a session's command with this process's own streams, and return its exit code (128 + n for signal n).

        Raises:
            EngineError: the image does not exist, or has no such user.
            EnvironmentProblem: the container cannot be made, or this machine has no such GPU.
        """
        image = self._store.open(session.image)
        stack, _ = self._store.stack(image, reporter)
        facts, means = described(image, 0), self._find_means()
        if session.network == "host":
            # Only the owner of a network namespace may mount a sysfs for it, and root owns the machine's.
            means = replace(means, sysfs=means.sysfs and os.geteuid() == 0)
        argv = session.argv or facts["cmd"]
        words = (*facts["entrypoint"], *argv) if facts["entrypoint"] else _through_shell(argv, stack)
        with run_folder(self._cache) as folder:
            inside = Inside(
                files=_network_files() if session.network == "host" else {},
                user=find_user(session.user or facts["user"], stack),
                env={**facts["env"], **dict(session.env)},
                workdir=session.workdir or facts["workdir"],
                gpus=host_gpus(session.gpus, stack) if session.gpus else None,
                mounts=session.mounts,
                volumes=declared_volumes(image.settings),
                network=session.network != "host",
                terminal=session.terminal,
            )
            cell = furnish(folder, stack, means, inside, session_limits(session))
            with contextlib.ExitStack() as open_terminal:
                terminal = open_terminal.enter_context(new_terminal()) if session.terminal else None
                return self._attach(cell, means, words, terminal, first=session.has_init)

    def _attach(self, cell: Cell, means: Means, argv: Sequence[str], terminal: Terminal | None, *, first: bool) -> int:
        streams = start.INHERITED
        if terminal is not None:
            streams = start.Streams(terminal.theirs, terminal.theirs, terminal.theirs, terminal=True)
        with start.started(cell, means, argv, first=first, streams=streams) as container:
            process = container.process
            if terminal is not None:
                os.close(terminal.theirs)  # while it is open here, reading our end never reports the end
            if not container.first:
                process.wait()
                raise start.failure(b"" if terminal is None else terminal.unread(), "the run")
            with forwarded_signals(lambda number: container.send(number, first=first)):
                container.release()
                if terminal is not None:
                    terminal.carry(process)
                code = process.wait()
        return code if code >= 0 else 128 - code

    def _run(
        self, image: Image, stack: Stack, command: Command, argv: Sequence[str], reporter: Reporter, *, reported: bool
    ) -> RunResult | None:
        del reported  # bubblewrap itself says when it cannot start the program
        facts, limits = described(image, 0), cage.bounded(command.limits, cage.memory_here())
        means = self._find_means()
        with run_folder(self._cache) as folder:
            cell = furnish(
                folder,
                stack,
                means,
                Inside(
                    files=command.files,
                    user=find_user(limits.user or facts["user"], stack),
                    env=facts["env"],
                    workdir=facts["workdir"],
                    gpus=host_gpus(command.gpus, stack) if command.gpus else None,
                    data=limits.data,
                ),
                limits,
            )
            group = cgroups.make(limits)
            try:
                words = (*facts["entrypoint"], *argv) if command.entrypoint else argv
                return self._watch(cell, group, words, command, reporter)
            finally:
                group.remove()

    def _watch(
        self,
        cell: Cell,
        group: cgroups.Group,
        argv: Sequence[str],
        command: Command,
        reporter: Reporter,
    ) -> RunResult | None:
        """Start the container, read its output until it ends, and return the result."""
        limits = command.limits
        output = cage.Output(limits)
        # An entry point may be an init, which has to be process 1 as in normal use.
        with start.started(cell, self._find_means(), argv, first=command.entrypoint) as container:
            process = container.process
            if not container.first:
                _, stderr = process.communicate()
                raise start.failure(stderr, f"the run in {command.image[:19]}")
            self._note_unlimited(start.limit(container, group, cell.user, limits), reporter)
            began = time.monotonic()
            container.release()
            over = collect(process, output, reporter, deadline=start.deadline(limits), kill=container.kill)
        duration = time.monotonic() - began
        # Bubblewrap reports signal n as exit code 128 + n; Popen reports its own child's as -n.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        code = cage.exit_code(code, duration, limits, output, over=over, image=command.image[:19])
        # 1 is the code of every failure of bubblewrap, and may be the command's own, so the message decides.
        if code == 1 and not output.stdout and output.stderr.startswith(_NOT_RUN):
            return None
        return output.result(code, duration, image=command.image, oom_killed=group.out_of_memory())

    def _find_means(self) -> Means:
        if self._means is None:
            with contextlib.ExitStack() as stack:
                # In the cache, where runs are made: whether an overlay can be mounted depends on the file system.
                try:
                    self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
                    folder = stack.enter_context(run_folder(self._cache))
                except (EnvkitError, OSError):
                    folder = stack.enter_context(scratch())
                self._means = start.probe(folder)
        return self._means


def _through_shell(argv: Sequence[str], stack: Stack) -> tuple[str, ...]:
    """Return the command run through the image's shell, if it has one.

    A shell exits with 127 or 126 if it cannot start the command, as Docker does. Bubblewrap exits with 1.
    """
    has_shell = any(stack.find(path) is not None for path in ("bin/sh", "usr/bin/sh"))
    return ("/bin/sh", "-c", 'exec "$@"', "sh", *argv) if has_shell else tuple(argv)


def session_limits(session: Session) -> RunLimits:
    """Return the limits of a session. As with `docker run`, its memory is not limited: it is the user's own command."""
    memory = cage.memory_here()
    # The kernel's default for a tmpfs is half of the machine's memory, which may be more than this process's own limit.
    return RunLimits(shm_mb=session.shm_mb, tmp_mb=None if memory is None else max(1, memory // 2 >> 20))


def _network_files() -> dict[str, bytes]:
    """Return this machine's files for name resolution, for a container on the host network."""
    files: dict[str, bytes] = {}
    for path in ("/etc/resolv.conf", "/etc/hosts"):
        with contextlib.suppress(OSError):
            files[path] = Path(path).read_bytes()
    return files
