"""A session started here: by Docker's client, which this process becomes, by Podman's, or by bubblewrap.

The clients pass on sizes of terminals and exit codes, and remove the container. Docker's passes on signals; Podman's
not all of them, so it is watched. Labels say which process a container belongs to, so a later run removes that of
a client that was killed.
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

from envkit.engine.address import docker_address
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import root_without
from envkit.ground.process import child
from envkit.run import cage
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.command_line import ULIMITS, engine_words
from envkit.run.podman import ulimits
from envkit.run.rootless.terminal import passing_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.run.model import Runner
    from envkit.run.session import Session

CLIENTS = {"docker": "docker.io", "podman": "podman"}
"""Engines that sessions run on, and the Debian package of their client."""
_ROOTLESS = "unix:///run/user/"  # where Docker's engine of a user other than root listens
_TELL_S = 30.0  # for the client to stop or remove a container
_STARTS_S, _AGAIN_S = 5.0, 0.1
_RAISE_LIMITS = 24  # CAP_SYS_RESOURCE
_INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/local/libexec/podman/catatonit")


def attach(
    runner: Runner, session: Session, reporter: Reporter, *, secrets: Sequence[str] = (), docker: str = "docker"
) -> int:
    """Run a session's command with this process's own streams, and return its exit code (128 + n for signal n).

    With Docker this does not return: the process becomes its client.

    Args:
        runner: 'docker', 'podman' or 'bubblewrap'.
        session: what is run; the runner has its image.
        reporter: receives the steps.
        secrets: variables of the session whose values no list of processes may show.
        docker: Docker's client, a name or a path.

    Raises:
        EngineError: the image does not exist, or has no such user.
        EnvironmentProblem: the client is missing, or the container cannot be made.
    """
    if isinstance(runner, BubblewrapRunner):
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
    name = cage.container_name()
    labels = [f"--label={key}={value}" for key, value in cage.labels().items()]
    words = line(session, runner.name, options=[f"--name={name}", *labels], hidden=secrets)
    values = dict(session.env)
    environment = {**os.environ, **{variable: values[variable] for variable in secrets}}
    if runner.name == "podman":
        return _watched(program, words, environment, name)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so
    return os.execve(program, words, environment)  # noqa: S606 - no shell


def _watched(program: str, words: Sequence[str], environment: Mapping[str, str], name: str) -> int:
    """Run Podman's client as a child that has the terminal, and hand signals to the container itself.

    The client passes signals on only from some moment after the start on; before that it ends, and the container stays.
    """
    sent: list[int] = []

    def end(client: subprocess.Popen[bytes]) -> None:
        client.kill()
        remove()

    def remove() -> None:
        _tell(program, "rm", "--force", "--ignore", "--volumes", "--time", "0", name)

    def send(number: int) -> None:
        sent.append(number)
        until = time.monotonic() + _STARTS_S
        while not _tell(program, "kill", "--signal", str(number), name) and time.monotonic() < until:
            time.sleep(_AGAIN_S)  # it is not started yet, or has just ended

    started = child(words, end=end, executable=program, env=dict(environment), process_group=0)
    with started as process, passing_on(send), _foreground(process.pid):
        code = process.wait()
    if code < 0 or sent:
        remove()
    return code if code >= 0 else 128 - code


def _tell(program: str, *words: str) -> bool:
    """Run a short command of the client; whether it succeeded."""
    try:
        return subprocess.run([program, *words], capture_output=True, timeout=_TELL_S, check=False).returncode == 0  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def _foreground(group: int) -> Iterator[None]:
    """Give the terminal, where there is one, to a process group: what is typed there, Ctrl-C included, is for it."""
    if not os.isatty(0):
        yield
        return
    # While another group has the terminal, taking it back would stop this process (tcsetpgrp(3)).
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, group)
            os.killpg(group, signal.SIGCONT)  # it may have been stopped by a look at the terminal
        yield
    finally:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _podman_has_init() -> bool:
    return shutil.which("catatonit") is not None or any(Path(path).exists() for path in _INITS)


def line(session: Session, engine: str, *, options: Sequence[str] = (), hidden: Sequence[str] = ()) -> list[str]:
    """The words of the engine's client that run a session as this user on this machine; as `engine_words`."""
    rootless = os.geteuid() != 0 and (engine == "podman" or docker_address().startswith(_ROOTLESS))
    return engine_words(
        session,
        engine,
        options=[*options, *(ulimits() if engine == "podman" else [])],
        # An engine on the same machine may not raise limits either.
        limits=limits_here() if rootless or root_without(_RAISE_LIMITS) else None,
        rootless=rootless,
        hidden=hidden,
    )


def limits_here() -> Mapping[str, str]:
    """The limits that a user without power may set: no higher than the ones of this process."""
    limits: dict[str, str] = {}
    for name, kind in (("memlock", resource.RLIMIT_MEMLOCK), ("stack", resource.RLIMIT_STACK)):
        most, wanted = resource.getrlimit(kind)[1], int(ULIMITS[name])
        limits[name] = str(wanted if most < 0 else most if wanted < 0 else min(most, wanted))
    return limits
