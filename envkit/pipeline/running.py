"""`envkit run`: a user's command in an image, with mounts, ports and limits from the image's labels and the options.

An image is known if it was built on this machine, or if a key that the user named signed an attestation of it. A
verification makes no image known, because the image takes part in it. Any other image is untrusted: it gets no folder
that the user did not name, and never the host network by default.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import paths
from envkit.ground.errors import IntegrityError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.state import read_last, was_built
from envkit.image.name import InEngine
from envkit.knowledge import variables
from envkit.pipeline.machine import gpus_here, name_of, runner_of
from envkit.plan import features
from envkit.run.attach import CLIENTS
from envkit.run.proot import ProotRunner
from envkit.run.session import LOOPBACK, Mount, Port, Session, in_use, is_free, parse_mount, parse_port

if TYPE_CHECKING:
    from contextlib import ExitStack

    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.ground.state import LastBuilt
    from envkit.image.name import ImageName
    from envkit.run.model import Runner

NONE = "none"
JUPYTER, SSH = "jupyter", "ssh"
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the name of a variable
_WORKSPACE, _DATA = "/workspace", "/data"
# MiB. Docker's default of 64 MiB is too small for the workers of a DataLoader. The maximum is for labels, which may
# come from an untrusted image.
_SHM_MB, _MOST_SHM_MB = 1024, 1 << 20
_OF_FILES = ("bubblewrap", "proot")
_NETWORK_HINT = "--network host shares this machine's network; --runner bubblewrap, docker or podman can have none"
_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")
# sshd.sh listens on 2222, because ports below 1024 usually need a capability; 8888 is Jupyter's default.
_SSH_PORT, _JUPYTER_PORT = 2222, 8888


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One command in one image: the options of `envkit run`."""

    image: ImageName | None = None  # None = the image built last
    argv: tuple[str, ...] = ()  # empty = the image's default command
    shell: bool = False  # run a shell instead of a command
    workspace: str | None = None  # a folder, 'none', or None = the current folder for a known image
    data: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # NAME=VALUE, or NAME to pass this process's value
    gpus: str | None = None  # see `gpus_here`
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
    lines: tuple[str, ...]  # to print before it starts
    secrets: tuple[str, ...] = ()  # variables that must not appear in the arguments of a process
    env: Mapping[str, str] = field(default_factory=dict)  # the image's variables, overridden by the session's


def ready(
    request: RunRequest,
    settings: Settings,
    reporter: Reporter,
    until: ExitStack | None = None,
    *,
    attested: str | None = None,
    last: LastBuilt | None = None,
    elsewhere: bool = False,
) -> Ready:
    """Find the image and its runner, and prepare the session.

    An image that podman loads from a file is removed from its storage when `until` closes; with None it stays there.
    `attested` is the ID of the image that a key of the user's attests; `last` is the image for a request without one;
    `elsewhere` as for `decide`.

    Raises:
        EngineError: the image does not exist.
        EnvironmentProblem: no runner can run it here, or a port is in use.
        IntegrityError: the image is not the attested one.
        UsageError: no image is named and none was built here, or an option is invalid.
    """
    if request.image is None and last is None:
        last = read_last(paths.state_dir(), command="run")
    runner, target = _runner(request, last, settings, reporter, until)
    facts = runner.inspect(target)
    ident = str(facts["id"])
    if attested is not None and attested != ident:
        raise IntegrityError(
            f"{target.typed} is {ident:.19}, and the attested image is {attested:.19}",
            hint="name the image by digest: HOST/NAME@sha256:...",
        )
    known = is_known(ident, attested)
    name = target if runner.name in _OF_FILES else _engine_name(request, last, target, facts)
    return decide(request, runner, facts, name=name, known=known, elsewhere=elsewhere)


def is_known(ident: str, attested: str | None) -> bool:
    """Return whether the image with this ID was built here, or is the one that a key of the user's attests."""
    return attested is not None or was_built(paths.state_dir(), ident)


def decide(
    request: RunRequest,
    runner: Runner,
    facts: Mapping[str, Any],
    *,
    name: ImageName,
    known: bool,
    free: Callable[[Port], bool] = is_free,
    elsewhere: bool = False,
) -> Ready:
    """Prepare the session of an image.

    Args:
        request: the options.
        runner: runs the container.
        facts: the result of `runner.inspect`.
        name: the runner's name of the image.
        known: whether the image was built here or is attested.
        free: returns whether a port is free.
        elsewhere: whether the session is for another machine: the image decides whether there are GPUs, and every port
            is free.

    Raises:
        EnvironmentProblem: a port is in use.
        UsageError: an option is invalid.
    """
    labels = facts["labels"]
    # An untrusted image may name any features. They decide only which service its own command is and which of its ports
    # are published.
    own = tuple(str(labels.get(f"{LABEL_PREFIX}.features", "")).split())
    argv, service = _command(request, facts, own)
    case = _Case(request=request, facts=facts, features=own, service=service, runner=runner.name, known=known)
    session = Session(
        image=name,
        argv=argv,
        entrypoint=facts["entrypoint"],
        mounts=_mounts(case),
        ports=_ports(case, (lambda _: True) if elsewhere else free),
        env=_env(request, facts),
        gpus=_gpus(request, facts, elsewhere=elsewhere),
        shm_mb=request.shm_mb or _shm(labels),
        user=_user(request, service),
        network=case.network,
        terminal=request.terminal,
        known=known,
    )
    lines = [_summary(runner, session, case)]
    if service == JUPYTER:
        session, line = _with_jupyter(session, case)
        lines.append(line)
    elif service == SSH:
        session, line = _with_ssh(session, request)
        lines.append(line)
    hidden = (TOKEN,) if service == JUPYTER else ()
    env = {**facts["env"], **dict(session.env)}
    lines += [f"note: {variable.said(value)}. {variable.fix}" for variable, value in _harmful(env, session)]
    return Ready(runner=runner, session=session, lines=tuple(lines), secrets=hidden, env=env)


def _gpus(request: RunRequest, facts: Mapping[str, Any], *, elsewhere: bool) -> str | None:
    """Return the GPUs of a session: those of the option, else all if the image is for GPUs and there are any."""
    if request.gpus is not None:
        return gpus_here(request.gpus, None)
    # Only images of envkit have this label. Images of NVIDIA, and most images that are made from them, have a variable.
    cuda = facts["labels"].get(f"{LABEL_PREFIX}.cuda")
    if cuda == NONE:
        return None
    return "all" if elsewhere and (cuda or "CUDA_VERSION" in facts["env"]) else gpus_here(None, None)


def _harmful(env: Mapping[str, str], session: Session) -> tuple[tuple[variables.Variable, str], ...]:
    """Return the variables of a session that hide its GPUs, or that slow it down or change results."""
    # Libraries and packages that an image puts first are its own business, and --gpus sets NVIDIA's variable.
    found = variables.found(env, gpu=session.gpus is not None, kinds=set(variables.KINDS) - {variables.SHADOWS})
    return tuple((variable, value) for variable, value in found if variable.name != "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The options, and what is known about the image."""

    request: RunRequest
    facts: Mapping[str, Any]  # from `runner.inspect`
    features: tuple[str, ...]
    service: str | None  # JUPYTER or SSH if the command is such a server
    runner: str  # its name
    known: bool  # the image was built here or is attested

    @property
    def network(self) -> str:
        """The container's network. Bubblewrap supports only the host network or none, proot only the host network.

        Raises:
            UsageError: proot cannot give the container that network.
        """
        requested = self.request.network
        if self.runner in CLIENTS or (requested is not None and self.runner == "bubblewrap"):
            return requested or "default"
        wanted = "host" if self.known or requested in ("default", "host") else NONE
        if self.runner == "proot" and NONE in (requested, wanted):
            what = "--network none" if requested else "an image that was not built here gets no network by default"
            raise UsageError(f"{what}: proot cannot keep a program off the network", hint=_NETWORK_HINT)
        return wanted


def _runner(
    request: RunRequest, last: LastBuilt | None, settings: Settings, reporter: Reporter, until: ExitStack | None
) -> tuple[Runner, ImageName]:
    how = settings.get("runner") or "auto"
    if how not in ("auto", *_OF_FILES, *CLIENTS):
        raise UsageError(
            f"runner {how!r:.80} does not support envkit run", hint="--runner docker, podman, bubblewrap or proot"
        )
    image = request.image if last is None else name_of(last)
    assert image is not None
    engine = last.engine if last else None
    return runner_of(image, settings, reporter, engine=engine, built=False, until=until)


def _engine_name(request: RunRequest, last: LastBuilt | None, target: ImageName, facts: Mapping[str, Any]) -> ImageName:
    """Return the target, or for the image built last a tag that still points to it, else its ID."""
    if request.image is not None:
        return target
    tags = last.tags if last is not None else ()
    return InEngine(name=next((tag for tag in tags if tag in facts["tags"]), str(facts["id"])))


def _command(request: RunRequest, facts: Mapping[str, Any], own: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the arguments after the entry point, and the service that they start, if any."""
    if request.shell:
        # bash if the image has it; every image with a shell has `sh`.
        return ("/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"), None
    if request.ssh_key is not None and SSH not in own:
        raise UsageError(
            "--ssh needs an image with the feature ssh",
            hint="features: [ssh] in the image definition, then envkit build",
        )
    if request.argv:
        return request.argv, JUPYTER if Path(request.argv[0]).name == "jupyter" else None
    cmd = tuple(facts["cmd"])
    # `python` is the command of an image whose definition names none.
    if request.ssh_key is not None or (SSH in own and JUPYTER not in own and cmd == ("python",)):
        return (), SSH
    if not cmd and not facts["entrypoint"]:
        raise UsageError("the image has no default command, and none is given", hint="envkit run IMAGE -- COMMAND")
    return (), JUPYTER if cmd and Path(cmd[0]).name == "jupyter" else None


def _mounts(case: _Case) -> tuple[Mount, ...]:
    request, workdir = case.request, str(case.facts["workdir"] or "")
    # A folder mounted at the root would hide the whole image.
    mount_point = workdir if workdir.strip("/") else _WORKSPACE
    mounts: list[Mount] = []
    workspace = request.workspace or ("." if case.known else NONE)
    if workspace != NONE:
        mounts.append(parse_mount(workspace, mount_point, read_only=False, option="--workspace"))
    for text in request.data:
        # The name of an existing folder may contain a colon.
        name = Path(text.rpartition(":")[0] or text if not Path(text).exists() else text).name
        target = _DATA if len(request.data) == 1 else f"{_DATA}/{name}"
        mounts.append(parse_mount(text, target, read_only=True, option="--data"))
    targets = [mount.target for mount in mounts]
    shared = next((path for path in targets if targets.count(path) > 1), None)
    if shared is not None:
        raise UsageError(f"two folders are mounted at {shared}", hint="--data DIR:/data/NAME")
    return tuple(mounts)


def _env(request: RunRequest, facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    variables: dict[str, str] = {}
    if not facts["env"].get("HOME"):
        variables["HOME"] = "/tmp"  # noqa: S108 - the root is read-only; only /tmp is writable
    for text in request.env:
        name, sign, value = text.partition("=")
        # POSIX: ASCII letters, digits and underscores, not beginning with a digit. An empty name is not alphanumeric.
        if not name.replace("_", "a").isalnum() or name[0].isdigit() or not name.isascii():
            raise UsageError(f"--env {text!r:.80} is not NAME=VALUE", hint="--env WANDB_MODE=offline")
        if not sign and name not in os.environ:
            raise UsageError(f"--env {name}: the variable is not set here", hint=f"--env {name}=VALUE")
        variables[name] = value if sign else os.environ[name]
    return tuple(variables.items())


def _shm(labels: Mapping[str, str]) -> int:
    """Return the size of /dev/shm in MiB from the image's label, else the default."""
    text = str(labels.get(f"{LABEL_PREFIX}.shm-mb", ""))
    valid = text.isascii() and text.isdigit() and len(text) < 9  # noqa: PLR2004 - digits of any sensible number
    return min(max(int(text), 1), _MOST_SHM_MB) if valid else _SHM_MB


def _user(request: RunRequest, service: str | None) -> str | None:
    if request.user == "image" or (service == SSH and request.user is None):
        return None  # sshd needs a user from the image's /etc/passwd
    if request.user is None:
        return f"{os.getuid()}:{os.getgid()}"
    parts = request.user.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):  # noqa: PLR2004
        raise UsageError(f"--user {request.user!r:.80} is not UID:GID", hint="--user 1000:1000, or --user image")
    # Without a group, Docker runs a user ID that is not in the image's /etc/passwd with the group root.
    return request.user if len(parts) > 1 else f"{request.user}:{request.user}"


def _ports(case: _Case, free: Callable[[Port], bool]) -> tuple[Port, ...]:
    """Return the published ports: the typed ones, which must be free, and those of the image that are free here."""
    request, network = case.request, case.network
    if network == NONE or (case.runner in _OF_FILES and network != "host"):
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
                f"--port {moved.host}:{moved.container}: ports cannot be mapped with the host network",
                hint=f"make the program listen on {moved.host}, or use --runner podman",
            )
    # 8888/tcp
    named = [entry.partition("/") for entry in dict.fromkeys([*case.facts["ports"], *_feature_ports(case.features)])]
    default = [Port(container=int(number), host=int(number), kind=kind) for number, _, kind in named]
    overridden = {(mapping.container, mapping.kind) for mapping in typed}
    default = (
        []
        if NONE in request.ports
        else [mapping for mapping in default if (mapping.container, mapping.kind) not in overridden]
    )
    needed = {JUPYTER: _JUPYTER_PORT, SSH: _SSH_PORT}.get(case.service or "")
    for port in typed:
        if not free(port):
            raise in_use(port)
    available = []
    for port in default:
        if free(port):
            available.append(port)
        elif port.container == needed:
            raise in_use(port)
    return (*typed, *available)


def _feature_ports(own: tuple[str, ...]) -> list[str]:
    """Return the ports of features, for images from before ports were part of the image configuration."""
    return [port for row in features.rows(own) for port in row.ports]


def _with_jupyter(session: Session, case: _Case) -> tuple[Session, str]:
    """Add a token to the session's environment and return the address with it."""
    env = dict(session.env)
    # Jupyter reads its token from this variable; in its arguments, every user of the machine would see it.
    token = env.setdefault(TOKEN, secrets.token_hex(16))
    if case.network == "host" and not session.argv:
        # With the host network, 0.0.0.0 would make the server reachable from other machines.
        loopback = tuple(f"--ip={LOOPBACK}" if word == "--ip=0.0.0.0" else word for word in case.facts["cmd"])
        session = replace(session, argv=loopback)
    session = replace(session, env=tuple(env.items()))
    port = next((port for port in session.ports if port.container == _JUPYTER_PORT), None)
    if port is None:
        return session, f"jupyter: port {_JUPYTER_PORT}, which is not published"
    return session, f"jupyter: http://{port.address}:{port.host}/lab?token={token}"


def _with_ssh(session: Session, request: RunRequest) -> tuple[Session, str]:
    """Start the image's SSH server with one public key as the only login."""
    key = request.ssh_key or next((path for name in _KEYS if (path := Path.home() / ".ssh" / name).is_file()), None)
    if key is None or not key.is_file():
        raise UsageError(
            f"public key {key} does not exist" if key else "no public key in ~/.ssh",
            hint="ssh-keygen -t ed25519, then envkit run --ssh ~/.ssh/id_ed25519.pub",
        )
    text = key.read_text(errors="replace").strip()
    # `ssh-ed25519 AAAA... me@host`; keys on FIDO devices begin with `sk-`. A second line would be a second login.
    if not text.startswith(("ssh-", "ecdsa-", "sk-")) or "\n" in text:
        raise UsageError(f"{key} is not an SSH public key", hint="--ssh ~/.ssh/id_ed25519.pub")
    # The key is an argument, so the shell executes no part of it. sshd ignores an authorized_keys file that others can
    # write.
    script = (
        'umask 077; mkdir -p "$HOME/.ssh"; printf "%s\\n" "$1" > "$HOME/.ssh/authorized_keys"; '
        "exec /usr/share/envkit/sshd.sh"
    )
    at = next((port for port in session.ports if port.container == _SSH_PORT), None)
    where = f"ssh -p {at.host} envkit@{at.address}" if at else f"port {_SSH_PORT}, which is not published"
    session = replace(session, argv=("/bin/sh", "-c", script, "sh", text))
    return session, f"ssh: {where}   (key {key})"


def _summary(runner: Runner, session: Session, case: _Case) -> str:
    """Return one line that describes the container's mounts, user, GPUs, memory and network, and what proot lacks."""
    shortfalls: tuple[str, ...] = ()
    writable: tuple[Mount, ...] = ()
    if isinstance(runner, ProotRunner):
        shortfalls, writable = runner.shortfalls(session), runner.unprotected(session)
    parts = []
    for mount in session.mounts:
        note = "" if not mount.read_only else " (not read-only here)" if mount in writable else " (read-only)"
        parts.append(f"{mount.source} at {mount.target}{note}")
    if not case.known and not session.mounts:
        parts.append("no folder, because the image was not built here (--workspace DIR mounts one)")
    parts.append(f"user {session.user or 'of the image'}")
    parts.append(f"GPUs {session.gpus or NONE}")
    parts += [] if shortfalls else [f"{session.shm_mb} MiB of shared memory"]
    parts += [f"ports {', '.join(map(str, session.ports))}"] if session.ports else []
    parts += {"default": [], "host": ["host network"]}.get(session.network, ["no network"]) if not shortfalls else []
    return f"{runner.name}: {'; '.join([*parts, *shortfalls])}"
