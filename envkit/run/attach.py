"""Start a session on this machine: become Docker's client, run Podman's as a child, or use a runner of files.

The clients forward terminal sizes and exit codes, and remove the container. Docker's client also forwards signals.
Podman's loses some, so this process forwards them. Labels name the process that a container belongs to, so that a later
run can remove the container of a client that was killed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.engines.address import docker_address
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import root_without
from envkit.ground.process import child
from envkit.run import containers
from envkit.run.command_line import ULIMITS, engine_words
from envkit.run.podman import ulimits
from envkit.run.rootless.runner import FileRunner
from envkit.run.rootless.terminal import forwarded_signals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.run.model import Runner
    from envkit.run.session import Session

CLIENTS = {"docker": "docker.io", "podman": "podman"}
"""Engines that sessions run on, and the Debian package of their client."""
_ROOTLESS = "unix:///run/user/"  # rootless Docker's socket is below it
_CLIENT_S = 30.0  # for the client to signal or remove a container
_RETRY_FOR_S, _RETRY_EVERY_S = 5.0, 0.1  # a signal that comes before the container has started
_RAISE_LIMITS = 24  # CAP_SYS_RESOURCE
# Podman looks for its helpers in these folders before PATH (containers.conf(5), helper_binaries_dir).
_INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/local/libexec/podman/catatonit")


def attach(
    runner: Runner, session: Session, reporter: Reporter, *, secrets: Sequence[str] = (), docker: str = "docker"
) -> int:
    """Run a session's command with this process's own streams, and return its exit code (128 + n for signal n).

    With Docker this does not return: the process becomes its client.

    Args:
        runner: 'docker', 'podman', or a runner of images in files.
        session: what to run; the runner has its image.
        reporter: receives the steps.
        secrets: variables of the session whose values must not appear in a process list.
        docker: name or path of Docker's client.

    Raises:
        EngineError: the image does not exist, or has no such user.
        EnvironmentProblem: the client is missing, or the container cannot be made.
    """
    if isinstance(runner, FileRunner):
        return runner.attach(session, reporter)
    program = shutil.which(docker if runner.name == "docker" else runner.name)
    if program is None:
        raise EnvironmentProblem(
            f"the client of {runner.name} is not installed", hint=f"apt-get install {CLIENTS[runner.name]}"
        )
    if runner.name == "podman" and not session.has_init and not _podman_has_init():
        raise EnvironmentProblem(
            "podman has no init process (catatonit is not installed), so signals would not reach the command",
            hint="apt-get install catatonit",
        )
    name = containers.container_name()
    labels = [f"--label={key}={value}" for key, value in containers.labels().items()]
    words = line(session, runner.name, options=[f"--name={name}", *labels], hidden=secrets)
    values = dict(session.env)
    environment = {**os.environ, **{variable: values[variable] for variable in secrets}}
    if runner.name == "podman":
        return _watched(program, words, environment, name)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and execve keeps ignored signals ignored
    return os.execve(program, words, environment)  # noqa: S606 - no shell


def _watched(program: str, words: Sequence[str], environment: Mapping[str, str], name: str) -> int:
    """Run Podman's client as a child that has the terminal, and send signals to the container directly.

    The client forwards signals only once the container runs. A signal before that ends the client but leaves the
    container.
    """
    sent: list[int] = []

    def end(client: subprocess.Popen[bytes]) -> None:
        client.kill()
        remove()

    def remove() -> None:
        # --time: by default Podman waits 10 s between SIGTERM and SIGKILL.
        _succeeds(program, "rm", "--force", "--ignore", "--volumes", "--time", "0", name)

    def send(number: int) -> None:
        sent.append(number)
        deadline = time.monotonic() + _RETRY_FOR_S
        while not _succeeds(program, "kill", "--signal", str(number), name) and time.monotonic() < deadline:
            time.sleep(_RETRY_EVERY_S)  # the container has not started yet, or has just ended

    # A group of its own, so that `_foreground` can give it the terminal, and with it Ctrl-C.
    started = child(words, end=end, executable=program, env=dict(environment), process_group=0)
    with started as process, forwarded_signals(send), _foreground(process.pid):
        code = process.wait()
    # A client that a signal has ended did not carry out `--rm`. For a container that is gone, removing it does nothing.
    if code < 0 or sent:
        remove()
    return code if code >= 0 else 128 - code


def _succeeds(program: str, *words: str) -> bool:
    """Run a short command of the client and return whether it succeeded."""
    try:
        return subprocess.run([program, *words], capture_output=True, timeout=_CLIENT_S, check=False).returncode == 0  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def _foreground(group: int) -> Iterator[None]:
    """Make a process group the terminal's foreground group, so that it gets all input and Ctrl-C."""
    if not os.isatty(0):
        yield
        return
    # While another group has the terminal, taking it back would stop this process (tcsetpgrp(3)).
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, group)
            os.killpg(group, signal.SIGCONT)  # reading the terminal from the background may have stopped it (SIGTTIN)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _podman_has_init() -> bool:
    return shutil.which("catatonit") is not None or any(Path(path).exists() for path in _INITS)


def line(session: Session, engine: str, *, options: Sequence[str] = (), hidden: Sequence[str] = ()) -> list[str]:
    """Return the command line of the engine's client for a session of this user on this machine; see `engine_words`."""
    rootless = os.geteuid() != 0 and (engine == "podman" or docker_address().startswith(_ROOTLESS))
    return engine_words(
        session,
        engine,
        options=[*options, *(ulimits() if engine == "podman" else [])],
        # Root without this capability cannot raise limits, and neither can an engine on the same machine.
        limits=limits_here() if rootless or root_without(_RAISE_LIMITS) else None,
        rootless=rootless,
        hidden=hidden,
    )


def limits_here() -> Mapping[str, str]:
    """Return `ULIMITS` reduced to this process's hard limits, which only a privileged process may exceed."""
    limits: dict[str, str] = {}
    for name, kind in (("memlock", resource.RLIMIT_MEMLOCK), ("stack", resource.RLIMIT_STACK)):
        hard, wanted = resource.getrlimit(kind)[1], int(ULIMITS[name])
        # Negative means unlimited, for both numbers.
        limits[name] = str(wanted if hard < 0 else hard if wanted < 0 else min(hard, wanted))
    return limits
