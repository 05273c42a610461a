"""Run images from files with bubblewrap: no daemon, and no root where user namespaces are allowed."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.ground.cache import run_folder
from envkit.ground.errors import EnvkitError
from envkit.ground.paths import scratch
from envkit.image.opening import described
from envkit.run import containers
from envkit.run.containers import Command
from envkit.run.model import STRONG, RunLimits, RunResult
from envkit.run.pipes import collect
from envkit.run.rootless import cgroups, start
from envkit.run.rootless.host_gpus import host_gpus
from envkit.run.rootless.runner import FileRunner, SessionWords, has_shell
from envkit.run.rootless.sandbox import Inside, Means, Sandbox, prepare
from envkit.run.rootless.user import find_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image
    from envkit.run.rootless.layered_tree import LayeredTree
    from envkit.run.rootless.terminal import Terminal
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

    def _attach(
        self, session: Session, stack: LayeredTree, inside: Inside, words: SessionWords, terminal: Terminal | None
    ) -> int:
        means = self._find_means()
        if session.network == "host":
            # Only the owner of a network namespace may mount a sysfs for it, and root owns the machine's.
            means = replace(means, sysfs=means.sysfs and os.geteuid() == 0)
        argv = words.all if words.entrypoint else _through_shell(words.argv, stack)
        with run_folder(self._cache) as folder:
            cell = prepare(folder, stack, means, inside, session_limits(session))
            streams = start.session_streams(terminal)
            with start.started(cell, means, argv, first=session.has_init, streams=streams) as container:
                return start.follow(container, terminal, first=session.has_init)

    def _run(
        self,
        image: Image,
        stack: LayeredTree,
        command: Command,
        argv: Sequence[str],
        reporter: Reporter,
        *,
        reported: bool,
    ) -> RunResult | None:
        del reported  # bubblewrap itself says when it cannot start the program
        facts, limits = described(image, 0), containers.bounded(command.limits, containers.memory_here())
        means = self._find_means()
        with run_folder(self._cache) as folder:
            cell = prepare(
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
        cell: Sandbox,
        group: cgroups.Group,
        argv: Sequence[str],
        command: Command,
        reporter: Reporter,
    ) -> RunResult | None:
        """Start the container, read its output until it ends, and return the result."""
        limits = command.limits
        output = containers.Output(limits)
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
        code = containers.exit_code(code, duration, limits, output, over=over, image=command.image[:19])
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


def _through_shell(argv: Sequence[str], stack: LayeredTree) -> tuple[str, ...]:
    """Return the command run through the image's shell, if it has one.

    A shell exits with 127 or 126 if it cannot start the command, as Docker does. Bubblewrap exits with 1.
    """
    return ("/bin/sh", "-c", 'exec "$@"', "sh", *argv) if has_shell(stack) else tuple(argv)


def session_limits(session: Session) -> RunLimits:
    """Return the limits of a session. As with `docker run`, its memory is not limited: it is the user's own command."""
    memory = containers.memory_here()
    # The kernel's default for a tmpfs is half of the machine's memory, which may be more than this process's own limit.
    return RunLimits(shm_mb=session.shm_mb, tmp_mb=None if memory is None else max(1, memory // 2 >> 20))
