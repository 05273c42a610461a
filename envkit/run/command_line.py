"""Sessions as command lines for Docker, Podman and Slurm, and as a Compose service.

`envkit run` starts exactly what it prints, and exported files have the same options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from envkit.image.name import InEngine, InRegistry

if TYPE_CHECKING:
    from envkit.image.name import ImageName
    from envkit.run.session import Session

ULIMITS: Mapping[str, str] = {"memlock": "-1", "stack": "67108864"}  # -1: no limit; the stack has 64 MiB
"""Page-locked memory for NCCL, and stacks for its threads.

Source: NVIDIA's release notes of the PyTorch container, "Running PyTorch".
"""
_SERVICE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")  # also a host name: at most 63 characters (RFC 1035)
TMP = "/tmp:rw,exec,nosuid,nodev,mode=1777"  # noqa: S108 - a file system inside the container
"""The only writable folder of a container besides its mounts; `exec` because compiled kernels are loaded from it."""


def gpu_options(engine: str, gpus: str | None) -> list[str]:
    """Return the options for `gpus`: `all`, device numbers and UUIDs joined by commas, or None for no GPU."""
    if gpus is None:
        return []
    if engine == "podman":
        return [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus.split(",")]
    # Docker parses the value as a line of CSV, so a list with commas needs quotes.
    return ["--gpus", gpus if gpus == "all" else f'"device={gpus}"']


def shm_option(shm_mb: int) -> str:
    """Return the option for the size of /dev/shm. The default of 64 MiB is too small for DataLoader workers."""
    return f"--shm-size={shm_mb}m"


def gres(count: int) -> str:
    """Return the value of Slurm's `--gres` for a number of GPUs."""
    return f"gpu:{count}"


def ulimit_options(limits: Mapping[str, str] | None = None) -> list[str]:
    """Return the options for `ULIMITS`; `limits` replaces those that this user may not set."""
    return [f"--ulimit={name}={value}" for name, value in {**ULIMITS, **(limits or {})}.items()]


def isolation_options(engine: str) -> list[str]:
    """Return the options for no capabilities, no way to gain any, and a read-only root."""
    words = ["--cap-drop=all", "--security-opt=no-new-privileges", "--read-only"]
    # By default Podman mounts writable tmpfs folders over a read-only root.
    return [*words, "--read-only-tmpfs=false"] if engine == "podman" else words


def engine_words(
    session: Session,
    engine: str,
    *,
    options: Sequence[str] = (),
    limits: Mapping[str, str] | None = None,
    rootless: bool = False,
    hidden: Sequence[str] = (),
) -> list[str]:
    """Return the `docker run` or `podman run` command for a session.

    Args:
        session: what to run.
        engine: 'docker' or 'podman'.
        options: more options, such as a name and labels.
        limits: see `ulimit_options`.
        rootless: whether the engine runs as a user other than root. Podman then maps user IDs.
        hidden: variables whose values the client takes from its environment, so that no process list shows them.
    """
    words = [engine, "run", "--rm", *_pull(session.image), *options]
    words += ["--interactive", "--tty"] if session.terminal else ["--interactive"]
    words += isolation_options(engine)
    words += [f"--tmpfs={TMP}", shm_option(session.shm_mb), *ulimit_options(limits)]
    words += gpu_options(engine, session.gpus)
    words += [] if session.has_init else ["--init"]
    # By default rootless Podman maps the caller to root. With keep-id the caller keeps its ID, so files that the
    # container writes into a mounted folder belong to the caller.
    words += ["--userns=keep-id"] if rootless and engine == "podman" else []
    words += [] if session.user is None else [f"--user={session.user}"]
    words += [] if session.workdir is None else [f"--workdir={session.workdir}"]
    words += [] if session.network == "default" else [f"--network={session.network}"]
    words += [f"--publish={port}" for port in session.ports] if session.network == "default" else []
    for mount in session.mounts:
        words.append(f"--volume={mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))
    # SELinux labels would deny a container access to users' folders. Without SELinux the option has no effect.
    words += ["--security-opt=label=disable"] if session.mounts and engine == "podman" else []
    words += [f"--env={key}" if key in hidden else f"--env={key}={value}" for key, value in session.env]
    return [*words, _image(session.image, engine), *session.argv]


def srun_words(session: Session, typed: Sequence[str]) -> list[str]:
    """Return the `srun` command that runs a session on a node, where envkit starts it.

    Args:
        session: what to run.
        typed: the options of `envkit run`, with absolute paths.
    """
    words = ["srun", "--ntasks=1"]
    if session.gpus is not None:  # `all` means all GPUs of the job, and the job asks for one unless the line is edited
        words.append(f"--gres={gres(1 if session.gpus == 'all' else len(session.gpus.split(',')))}")
    words += ["--pty"] if session.terminal else []
    command = ["--", *session.argv] if session.argv else []
    return [*words, "envkit", "run", *typed, session.image.typed, *command]


def apptainer_words(session: Session) -> list[str]:
    """Return the `apptainer` command for a session: the caller's user, the machine's network and /dev/shm.

    Source: apptainer-exec(1); Apptainer User Guide, "Support for Docker and OCI Containers".
    """
    # `exec` leaves out the entry point; the image's own command is its run script.
    words = ["apptainer", "exec" if session.argv else "run"]
    words += ["--nv"] if session.gpus is not None else []
    words += ["--net", "--network=none"] if session.network == "none" else []
    for mount in session.mounts:
        words.append(f"--bind={mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))
    workspace = next((mount.target for mount in session.mounts if not mount.read_only), None)
    folder = session.workdir or workspace
    words += [f"--pwd={folder}"] if folder else []
    # Apptainer keeps HOME for itself. GPUs are chosen for CUDA: `--nv` gives all of them.
    env = [(key, value) for key, value in session.env if key != "HOME"]
    env += [("CUDA_VISIBLE_DEVICES", session.gpus)] if session.gpus not in (None, "all") else []
    return [*words, *(f"--env={key}={value}" for key, value in env), _for_apptainer(session.image), *session.argv]


def compose_service(session: Session, engine: str) -> str:
    """Return the text of a Compose file with one service.

    Args:
        session: what to run.
        engine: 'docker' or 'podman', which has the image.
    """
    values = {
        "name": _service_name(session.image),
        "image": _escaped(_image(session.image, engine)),
        "pulls": not _pull(session.image),
        "command": [_escaped(word) for word in session.argv],
        "user": session.user,
        "init": not session.has_init,
        "terminal": session.terminal,
        "tmpfs": TMP,
        "shm_mb": session.shm_mb,
        "ulimits": dict(ULIMITS),
        "network": None if session.network == "default" else session.network,
        "ports": [str(port) for port in session.ports] if session.network == "default" else [],
        "volumes": [
            {"source": _escaped(str(mount.source)), "target": _escaped(mount.target), "read_only": mount.read_only}
            for mount in session.mounts
        ],
        "env": [[key, _escaped(value)] for key, value in session.env],
        "gpus": session.gpus,
    }
    from envkit.render.texts import text_of  # noqa: PLC0415 - with Jinja, which the other forms do not need

    return text_of("export/compose.yaml.j2", values, ()).rstrip("\n")


def entrypoint_option(argv: Sequence[str]) -> str:
    """Return Podman's option for another entry point. A JSON array allows arguments and spaces."""
    return f"--entrypoint={json.dumps(list(argv))}"


def _pull(image: ImageName) -> list[str]:
    """Return the option that forbids pulling; files are read anyway, and a registry is for a line that is printed."""
    return ["--pull=never"] if isinstance(image, InEngine) else []


def _image(image: ImageName, engine: str) -> str:
    match image:
        case InRegistry(name=name):
            return name
        case InEngine(name=name) if engine == "podman":
            return name.removeprefix("sha256:")
        case _:
            return image.typed


def _for_apptainer(image: ImageName) -> str:
    match image:
        case InRegistry(name=name):
            return f"docker://{name}"
        case InEngine(name=name):
            return f"docker-daemon:{name}"
        case _:
            return image.typed


def _escaped(text: str) -> str:
    """Return text that Compose does not interpolate."""
    return text.replace("$", "$$")


def _service_name(image: ImageName) -> str:
    """Return a service name: the image's name without registry and tag."""
    last = image.typed.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    # An image ID (`sha256:...`) has no name.
    return last if _SERVICE.fullmatch(last) and last != "sha256" else "envkit"
