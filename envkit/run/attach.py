"""A session started here: this process becomes the engine's client, or waits for bubblewrap's container.

Docker's and Podman's clients pass on signals, sizes of terminals and exit codes, and remove the container. Labels say
which process it belongs to, so a later run removes the container of a client that was killed.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem
from envkit.run import cage
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.command_line import ULIMITS, engine_words
from envkit.run.podman import ulimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.run.model import Runner
    from envkit.run.session import Session

CLIENTS = {"docker": "docker.io", "podman": "podman"}
"""Engines that sessions run on, and the Debian package of their client."""
_RAISE_LIMITS = 1 << 24  # CAP_SYS_RESOURCE
_INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/local/libexec/podman/catatonit")


def attach(
    runner: Runner, session: Session, reporter: Reporter, *, secrets: Sequence[str] = (), docker: str = "docker"
) -> int:
    """Run a session's command with this process's own streams, and return its exit code (128 + n for signal n).

    With Docker and Podman this does not return: the process becomes their client.

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
    labels = [f"--label={key}={value}" for key, value in cage.labels().items()]
    words = line(session, runner.name, options=[f"--name={cage.container_name()}", *labels], hidden=secrets)
    values = dict(session.env)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so
    return os.execve(program, words, {**os.environ, **{name: values[name] for name in secrets}})  # noqa: S606 - no shell


def line(session: Session, engine: str, *, options: Sequence[str] = (), hidden: Sequence[str] = ()) -> list[str]:
    """The words of the engine's client that run a session as this user on this machine; as `engine_words`."""
    rootless = engine == "podman" and os.geteuid() != 0
    words = engine_words(
        session,
        engine,
        options=[*options, *(ulimits() if engine == "podman" else [])],
        limits=limits_here() if rootless or _stuck() else None,
        rootless=rootless,
        hidden=hidden,
    )
    lacks_init = engine == "podman" and not any(Path(one).exists() for one in _INITS) and not shutil.which("catatonit")
    return [one for one in words if one != "--init"] if lacks_init else words


def limits_here() -> Mapping[str, str]:
    """The limits that a user without power may set: no higher than the ones of this process."""
    found: dict[str, str] = {}
    for name, kind in (("memlock", resource.RLIMIT_MEMLOCK), ("stack", resource.RLIMIT_STACK)):
        most, wanted = resource.getrlimit(kind)[1], int(ULIMITS[name])
        found[name] = str(wanted if most < 0 else most if wanted < 0 else min(most, wanted))
    return found


def _stuck() -> bool:
    """Whether this is root, and may not raise limits: an engine on the same machine may not either."""
    if os.geteuid() != 0:
        return False
    rows = dict(row.partition(":")[::2] for row in Path("/proc/self/status").read_text().splitlines())
    return not int(rows["CapEff"], 16) & _RAISE_LIMITS
