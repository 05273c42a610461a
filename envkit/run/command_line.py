"""Containers as command lines of Docker, Podman and Slurm, and as a service of Compose.

`envkit run` starts what it prints, and exported files have the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from envkit.render.texts import text_of

if TYPE_CHECKING:
    from envkit.run.session import Session

ULIMITS: Mapping[str, str] = {"memlock": "-1", "stack": "67108864"}
"""Page-locked memory for NCCL, and stacks for its threads.

Source: NVIDIA's release notes of the PyTorch container, "Running PyTorch".
"""
_SERVICE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
TMP = "/tmp:rw,exec,nosuid,nodev,mode=1777"  # noqa: S108 - a file system inside the container
"""The one writable place of a container besides its mounts; `exec` because compiled kernels are loaded from there."""


def gpu_options(engine: str, gpus: str | None) -> list[str]:
    """The options for GPUs: `all`, or device numbers and UUIDs joined by commas; None = none."""
    if gpus is None:
        return []
    if engine == "podman":
        return [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus.split(",")]
    # Docker reads the value as one line of CSV, where a comma separates options.
    return ["--gpus", gpus if gpus == "all" else f'"device={gpus}"']


def shm_option(shm_mb: int) -> str:
    """The option for the size of /dev/shm, which is 64 MiB without it: too little for workers of a DataLoader."""
    return f"--shm-size={shm_mb}m"


def gres(count: int) -> str:
    """Slurm's value of `--gres` for so many GPUs."""
    return f"gpu:{count}"


def ulimit_options(most: Mapping[str, str] | None = None) -> list[str]:
    """The options for limits; `most` replaces those that this user cannot have."""
    return [f"--ulimit={name}={value}" for name, value in {**ULIMITS, **(most or {})}.items()]


def isolation_options(engine: str) -> list[str]:
    """No capabilities, no way to gain any, and a root that cannot be written."""
    words = ["--cap-drop=all", "--security-opt=no-new-privileges", "--read-only"]
    # Podman would add writable folders of its own.
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
    """The words of `docker run` or `podman run` for a session.

    Args:
        session: what is run.
        engine: 'docker' or 'podman'.
        options: further ones, such as a name and labels.
        limits: as `ulimit_options` takes them.
        rootless: whether the engine runs as a user other than root; podman's containers have other user IDs then.
        hidden: variables whose value the client takes from its own environment, which no process list shows.
    """
    words = [engine, "run", "--rm", *_pull(session.image), *options]
    words += ["--interactive", "--tty"] if session.terminal else ["--interactive"]
    words += isolation_options(engine)
    words += [f"--tmpfs={TMP}", shm_option(session.shm_mb), *ulimit_options(limits)]
    words += gpu_options(engine, session.gpus)
    words += [] if session.has_init else ["--init"]
    # Rootless podman makes the caller root inside. With keep-id, what the container writes into a mounted folder has
    # the caller as its owner outside.
    words += ["--userns=keep-id"] if rootless and engine == "podman" else []
    words += [] if session.user is None else [f"--user={session.user}"]
    words += [] if session.workdir is None else [f"--workdir={session.workdir}"]
    words += [] if session.network == "default" else [f"--network={session.network}"]
    words += [f"--publish={port}" for port in session.ports] if session.network == "default" else []
    for mount in session.mounts:
        words.append(f"--volume={mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))
    # Labels of SELinux would keep a container from folders of users; elsewhere the option does nothing.
    words += ["--security-opt=label=disable"] if session.mounts and engine == "podman" else []
    words += [f"--env={key}" if key in hidden else f"--env={key}={value}" for key, value in session.env]
    return [*words, _image(session.image, engine), *session.argv]


def srun_words(session: Session, typed: Sequence[str]) -> list[str]:
    """The words of `srun` that run a session on a node: envkit on the node starts it.

    Args:
        session: what is run.
        typed: options of `envkit run`, with absolute paths.
    """
    words = ["srun", "--ntasks=1"]
    if session.gpus is not None:  # `all` are all that the job gets: one, unless the line is changed
        words.append(f"--gres={gres(1 if session.gpus == 'all' else len(session.gpus.split(',')))}")
    words += ["--pty"] if session.terminal else []
    command = ["--", *session.argv] if session.argv else []
    return [*words, "envkit", "run", *typed, session.image, *command]


def compose_service(session: Session, engine: str) -> str:
    """Return the text of a compose file with one service.

    Args:
        session: what is run.
        engine: whose image it is: 'docker' or 'podman'.
    """
    values = {
        "name": _service_name(session.image),
        "image": _plain(_image(session.image, engine)),
        "command": [_plain(word) for word in session.argv],
        "user": session.user,
        "init": not session.has_init,
        "terminal": session.terminal,
        "tmpfs": TMP,
        "shm_mb": session.shm_mb,
        "ulimits": dict(ULIMITS),
        "network": None if session.network == "default" else session.network,
        "ports": [str(port) for port in session.ports] if session.network == "default" else [],
        "volumes": [
            {"source": _plain(str(mount.source)), "target": _plain(mount.target), "read_only": mount.read_only}
            for mount in session.mounts
        ],
        "env": [[key, _plain(value)] for key, value in session.env],
        "gpus": session.gpus,
    }
    return text_of("export/compose.yaml.j2", values, ()).rstrip("\n")


def entrypoint_option(argv: Sequence[str]) -> str:
    """Podman's option for another entry point."""
    return f"--entrypoint={json.dumps(list(argv))}"


def _pull(image: str) -> list[str]:
    """Never pull what a name means; an image that is a file is always read."""
    return [] if image.startswith(("oci:", "docker-archive:")) else ["--pull=never"]


def _image(image: str, engine: str) -> str:
    return image.removeprefix("sha256:") if engine == "podman" else image


def _plain(text: str) -> str:
    """A text in which Compose replaces nothing."""
    return text.replace("$", "$$")


def _service_name(image: str) -> str:
    """A service's name: that of the image without registry and tag."""
    last = image.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    return last if _SERVICE.fullmatch(last) and last != "sha256" else "envkit"
