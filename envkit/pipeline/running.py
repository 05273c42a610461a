"""A user's own command in an image: what a container of it gets on this machine, from its labels and what was asked.

An image counts as known here if it is the one built last, or if a kept record judges it. Any other image is foreign
code: it gets no folder of this machine that was not named, and never the machine's network by itself.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import paths
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.state import read_last, records_of
from envkit.image.spec import LABEL_PREFIX
from envkit.pipeline.verification import gpus_here, runner_of
from envkit.plan import features
from envkit.run import remedies
from envkit.run.attach import CLIENTS
from envkit.run.session import LOOPBACK, Mount, Port, Session, in_use, is_free, parse_mount, parse_port

if TYPE_CHECKING:
    from contextlib import ExitStack

    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.ground.state import LastBuilt
    from envkit.run.model import Runner

NONE = "none"
JUPYTER, SSH = "jupyter", "ssh"
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the name of a variable
_WORKSPACE, _DATA = "/workspace", "/data"
_SHM_MB, _MOST_SHM_MB = 1024, 1 << 20
_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")
_SSH_PORT, _JUPYTER_PORT = 2222, 8888


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One command in one image, as it was asked for."""

    image: str | None = None  # None = the image built last
    argv: tuple[str, ...] = ()  # empty = the image's own command
    shell: bool = False  # run a shell in place of a command
    workspace: str | None = None  # a folder, 'none', or None = the current folder for a known image
    data: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # NAME=VALUE, or NAME with this process's value
    gpus: str | None = None  # as for `gpus_here`
    shm_mb: int | None = None
    user: str | None = None  # 'uid:gid', 'image', or None = the caller's
    network: str | None = None  # 'default', 'host', 'none'
    terminal: bool = False
    ssh_key: Path | None = None  # a public key: start the image's SSH server


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A session that can be started."""

    runner: Runner
    session: Session
    lines: tuple[str, ...]  # what the caller is told first
    secrets: tuple[str, ...] = ()  # variables of the session that no list of processes may show
    env: Mapping[str, str] = field(default_factory=dict)  # the image's variables with those of the session


def ready(request: RunRequest, settings: Settings, reporter: Reporter, until: ExitStack | None = None) -> Ready:
    """Find the image and its runner, and decide what a container of it gets.

    An image of a file that podman has to load is removed from its storage when `until` closes; None: it stays there.

    Raises:
        EngineError: the image does not exist.
        EnvironmentProblem: nothing can run it here, or a port is in use.
        UsageError: nothing was built here and no image is named, or an option is invalid.
    """
    state = paths.state_dir()
    last = read_last(state, command="run") if request.image is None else None
    runner, target = _runner(request, last, settings, reporter, until)
    facts = runner.inspect(target)
    known = last is not None or _is_last(state, request.image, facts) or any(records_of(state, (str(facts["id"]),)))
    name = target if runner.name == "bubblewrap" else _engine_name(request, last, target, facts)
    return decide(request, runner, facts, name=name, known=known)


def decide(
    request: RunRequest,
    runner: Runner,
    facts: Mapping[str, Any],
    *,
    name: str,
    known: bool,
    free: Callable[[Port], bool] = is_free,
) -> Ready:
    """Decide what a container gets.

    Args:
        request: what was asked for.
        runner: that runs it.
        facts: what the runner says of the image.
        name: what it calls the image.
        known: whether the image was built or verified here.
        free: whether nothing listens at a port.

    Raises:
        EnvironmentProblem: a port is in use.
        UsageError: an option is invalid.
    """
    labels = facts["labels"]
    own = tuple(str(labels.get(f"{LABEL_PREFIX}.features", "")).split())
    argv, service = _command(request, facts, own)
    bwrap = runner.name == "bubblewrap"
    case = _Case(request=request, facts=facts, features=own, service=service, bwrap=bwrap, known=known)
    for_cpus = labels.get(f"{LABEL_PREFIX}.cuda") == NONE and request.gpus is None
    session = Session(
        image=name,
        argv=argv,
        entrypoint=facts["entrypoint"],
        mounts=_mounts(case),
        ports=_ports(case, free),
        env=_env(request, facts),
        gpus=None if for_cpus else gpus_here(request.gpus, None),
        shm_mb=request.shm_mb or _shm(labels),
        user=_user(request, service),
        network=case.network,
        terminal=request.terminal,
    )
    lines = [_summary(runner.name, session, case)]
    if service == JUPYTER:
        session, line = _with_jupyter(session, case)
        lines.append(line)
    elif service == SSH:
        session, line = _with_ssh(session, request)
        lines.append(line)
    hidden = (TOKEN,) if service == JUPYTER else ()
    env = {**facts["env"], **dict(session.env)}
    return Ready(runner=runner, session=session, lines=tuple(lines), secrets=hidden, env=env)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is asked for, and what is known of the image."""

    request: RunRequest
    facts: Mapping[str, Any]  # as the runner tells them
    features: tuple[str, ...]
    service: str | None  # what the command is: a server that is told how to be reached
    bwrap: bool
    known: bool  # the image was built or verified here

    @property
    def network(self) -> str:
        """The container's network. Bubblewrap has the machine's or none."""
        return self.request.network or ("default" if not self.bwrap else "host" if self.known else NONE)


def _runner(
    request: RunRequest, last: LastBuilt | None, settings: Settings, reporter: Reporter, until: ExitStack | None
) -> tuple[Runner, str]:
    how = settings.get("runner") or "auto"
    if how not in ("auto", "bubblewrap", *CLIENTS):
        raise UsageError(f"runner {how!r:.80} starts no sessions", hint="--runner docker, podman or bubblewrap")
    image = request.image if last is None else last.image
    assert image is not None
    engine = last.engine if last else None
    runner, target = runner_of(image, settings, reporter, engine=engine, built=last is not None, until=until)
    if runner.name not in ("bubblewrap", *CLIENTS):
        raise EnvironmentProblem(
            f"only {runner.name} works here, and it starts no sessions", hint=remedies.hint(building=False)
        )
    return runner, target


def _is_last(state: Path, image: str | None, facts: Mapping[str, Any]) -> bool:
    """Whether an image that is named is the one built last."""
    try:
        last = read_last(state)
    except UsageError:  # nothing was built here
        return False
    return last.image in (image, facts["id"])


def _engine_name(request: RunRequest, last: LastBuilt | None, target: str, facts: Mapping[str, Any]) -> str:
    """The image's shortest name in an engine that is surely this image."""
    if request.image is not None:
        return target
    tags = last.tags if last is not None else ()
    return next((tag for tag in tags if tag in facts["tags"]), str(facts["id"]))


def _command(request: RunRequest, facts: Mapping[str, Any], own: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """What follows the entry point, and the service that it is."""
    if request.shell:
        # bash where the image has it; `sh` is in every image with a shell.
        return ("/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"), None
    if request.ssh_key is not None and SSH not in own:
        raise UsageError(
            "--ssh needs an image with the feature ssh",
            hint="features: [ssh] in the image definition, then envkit build",
        )
    if request.argv:
        return request.argv, JUPYTER if Path(request.argv[0]).name == "jupyter" else None
    cmd = tuple(facts["cmd"])
    if request.ssh_key is not None or (SSH in own and JUPYTER not in own and cmd == ("python",)):
        return (), SSH
    if not cmd and not facts["entrypoint"]:
        raise UsageError("the image has no command of its own, and none is given", hint="envkit run IMAGE -- COMMAND")
    return (), JUPYTER if cmd and Path(cmd[0]).name == "jupyter" else None


def _mounts(case: _Case) -> tuple[Mount, ...]:
    request, workdir = case.request, str(case.facts["workdir"] or "")
    mount_point = workdir if workdir.strip("/") else _WORKSPACE
    mounts: list[Mount] = []
    workspace = request.workspace or ("." if case.known else NONE)
    if workspace != NONE:
        mounts.append(parse_mount(workspace, mount_point, read_only=False, option="--workspace"))
    for text in request.data:
        name = Path(text.rpartition(":")[0] or text if not Path(text).exists() else text).name
        target = _DATA if len(request.data) == 1 else f"{_DATA}/{name}"
        mounts.append(parse_mount(text, target, read_only=True, option="--data"))
    targets = [mount.target for mount in mounts]
    twice = next((path for path in targets if targets.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"two folders are mounted at {twice}", hint="--data DIR:/data/NAME")
    return tuple(mounts)


def _env(request: RunRequest, facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    variables: dict[str, str] = {}
    if not facts["env"].get("HOME"):
        variables["HOME"] = "/tmp"  # noqa: S108 - the one writable place: the root is read-only
    for text in request.env:
        name, sign, value = text.partition("=")
        if not name.replace("_", "a").isalnum() or name[0].isdigit() or not name.isascii():
            raise UsageError(f"--env {text!r:.80} is not NAME=VALUE", hint="--env WANDB_MODE=offline")
        if not sign and name not in os.environ:
            raise UsageError(f"--env {name}: the variable is not set here", hint=f"--env {name}=VALUE")
        variables[name] = value if sign else os.environ[name]
    return tuple(variables.items())


def _shm(labels: Mapping[str, str]) -> int:
    """MiB of /dev/shm, as the plan has them."""
    text = str(labels.get(f"{LABEL_PREFIX}.shm-mb", ""))
    sound = text.isascii() and text.isdigit() and len(text) < 9  # noqa: PLR2004 - digits of any sensible number
    return min(max(int(text), 1), _MOST_SHM_MB) if sound else _SHM_MB


def _user(request: RunRequest, service: str | None) -> str | None:
    if request.user == "image" or (service == SSH and request.user is None):
        return None  # an SSH server needs a user that the image knows
    if request.user is None:
        return f"{os.getuid()}:{os.getgid()}"
    parts = request.user.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):  # noqa: PLR2004
        raise UsageError(f"--user {request.user!r:.80} is not UID:GID", hint="--user 1000:1000, or --user image")
    return request.user if len(parts) > 1 else f"{request.user}:{request.user}"


def _ports(case: _Case, free: Callable[[Port], bool]) -> tuple[Port, ...]:
    """The ports that can be reached on this machine. Those that were not asked for give way to other programs."""
    request, network = case.request, case.network
    if network == NONE or (case.bwrap and network != "host"):
        if any(text != NONE for text in request.ports):
            raise UsageError(
                "--port: this container has no network", hint="--network host with bubblewrap, or --runner podman"
            )
        return ()
    typed = [parse_port(text) for text in request.ports if text != NONE]
    if network == "host":
        moved = next((mapping for mapping in typed if mapping.host != mapping.container), None)
        if moved is not None:
            raise UsageError(
                f"--port {moved.host}:{moved.container}: the container has this machine's network, so ports keep "
                "their numbers",
                hint=f"have the program listen on {moved.host}, or use --runner podman",
            )
    named = [entry.partition("/") for entry in dict.fromkeys([*case.facts["ports"], *_feature_ports(case.features)])]
    default = [Port(container=int(number), host=int(number), kind=kind) for number, _, kind in named]
    taken = {(mapping.container, mapping.kind) for mapping in typed}
    default = (
        []
        if NONE in request.ports
        else [mapping for mapping in default if (mapping.container, mapping.kind) not in taken]
    )
    needed = {JUPYTER: _JUPYTER_PORT, SSH: _SSH_PORT}.get(case.service or "")
    for port in typed:
        if not free(port):
            raise in_use(port)
    left = []
    for port in default:
        if free(port):
            left.append(port)
        elif port.container == needed:
            raise in_use(port)
    return (*typed, *left)


def _feature_ports(own: tuple[str, ...]) -> list[str]:
    """Ports of features, for images that were built before ports were part of their configuration."""
    return [port for row in features.rows(own) for port in row.ports]


def _with_jupyter(session: Session, case: _Case) -> tuple[Session, str]:
    """A token that only the caller knows, and the address with it."""
    env = dict(session.env)
    token = env.setdefault(TOKEN, secrets.token_hex(16))
    if case.network == "host" and not session.argv:
        # The container has this machine's network: not every other machine is to reach it.
        loopback = tuple(f"--ip={LOOPBACK}" if word == "--ip=0.0.0.0" else word for word in case.facts["cmd"])
        session = replace(session, argv=loopback)
    at = next((port for port in session.ports if port.container == _JUPYTER_PORT), None)
    where = f"http://{at.address}:{at.host}" if at else f"port {_JUPYTER_PORT}, which is not published"
    return replace(
        session, env=tuple(env.items())
    ), f"jupyter: {where}/lab?token={token}" if at else f"jupyter: {where}"


def _with_ssh(session: Session, request: RunRequest) -> tuple[Session, str]:
    """The image's SSH server, which accepts one public key of the caller."""
    key = request.ssh_key or next((path for name in _KEYS if (path := Path.home() / ".ssh" / name).is_file()), None)
    if key is None or not key.is_file():
        raise UsageError(
            f"there is no public key {key}" if key else "there is no public key in ~/.ssh",
            hint="ssh-keygen -t ed25519, then envkit run --ssh ~/.ssh/id_ed25519.pub",
        )
    text = key.read_text(errors="replace").strip()
    if not text.startswith(("ssh-", "ecdsa-", "sk-")) or "\n" in text:
        raise UsageError(f"{key} is not a public key of SSH", hint="--ssh ~/.ssh/id_ed25519.pub")
    script = (
        'umask 077; mkdir -p "$HOME/.ssh"; printf "%s\\n" "$1" > "$HOME/.ssh/authorized_keys"; '
        "exec /usr/share/envkit/sshd.sh"
    )
    at = next((port for port in session.ports if port.container == _SSH_PORT), None)
    where = f"ssh -p {at.host} envkit@{at.address}" if at else f"port {_SSH_PORT}, which is not published"
    session = replace(session, argv=("/bin/sh", "-c", script, "sh", text))
    return session, f"ssh: {where}   (key {key})"


def _summary(runner: str, session: Session, case: _Case) -> str:
    """One line that says what the container gets."""
    parts = [f"{mount.source} at {mount.target}{' (read-only)' if mount.read_only else ''}" for mount in session.mounts]
    if not case.known and not session.mounts:
        parts.append("no folder: not built or verified here (--workspace DIR mounts one)")
    parts.append(f"user {session.user or 'of the image'}")
    parts.append(f"GPUs {session.gpus or NONE}")
    parts.append(f"{session.shm_mb} MiB of shared memory")
    parts += [f"ports {', '.join(map(str, session.ports))}"] if session.ports else []
    parts += {"default": [], "host": ["network of the host"]}.get(session.network, ["no network"])
    return f"{runner}: {'; '.join(parts)}"
