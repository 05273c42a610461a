"""The Docker engine: one that answers, else one that is started here (as root on Debian or Ubuntu)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from tests.scratch import storage
from tests.world import apt, processes
from tests.world.places import UnavailableError, locked, say

NAME = "dockerd"
STORAGE = "docker"
_SOCKET = "/var/run/docker.sock"
# From the options for an ordinary machine to those for a nested container.
_ATTEMPTS = (
    ("--storage-driver=overlay2",),
    ("--storage-driver=overlay2", "--iptables=false", "--ip6tables=false", "--bridge=none"),
    ("--iptables=false", "--ip6tables=false", "--bridge=none"),
)
_FIRST_BUILDKIT_DEFAULT = 23  # older clients contain BuildKit; from this version on they need the buildx plugin


@dataclass(frozen=True, slots=True)
class Docker:
    """An engine that answers: its address, and a client that can use BuildKit."""

    host: str
    client: str


def ensure_docker(*, keep: bool) -> Docker:
    """Return the engine that answers, else install and start one; raises UnavailableError with the reason."""
    host = os.environ.get("DOCKER_HOST") or f"unix://{_SOCKET}"
    with locked("docker"):
        reason = no_answer(host)
        if reason and os.environ.get("DOCKER_HOST"):
            raise UnavailableError(f"no Docker engine answers at DOCKER_HOST={host}: {reason}")
        if reason:
            _start(reason, keep=keep)
        return Docker(host, buildkit_client())


def answers(host: str) -> bool:
    """Return whether a Docker engine answers at this address."""
    return no_answer(host) is None


def no_answer(host: str) -> str | None:
    """Return the client's error if no Docker engine answers at this address, None if one does."""
    clients = _clients()
    if not clients:
        return "no docker command here"
    command = [clients[0], "--host", host, "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return f"{host} does not answer"
    return None if done.returncode == 0 else " ".join(done.stderr.split()) or f"{host} does not answer"


@once
def buildkit_client() -> str:
    """Return the first `docker` command that can build with BuildKit; the first on PATH may lack the plugin."""
    clients = _clients()
    if not any(_has_buildkit(client) for client in clients):
        apt.install("docker.io")
        clients = _clients()
    for client in clients:
        if _has_buildkit(client):
            return client
    raise UnavailableError(f"no docker command here can use BuildKit (tried: {', '.join(clients) or 'none found'})")


def _clients() -> list[str]:
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"]
    paths = [shutil.which("docker", path=folder) for folder in folders]
    return list(dict.fromkeys(path for path in paths if path))


def _has_buildkit(client: str) -> bool:
    if subprocess.run([client, "buildx", "version"], capture_output=True, check=False).returncode == 0:
        return True
    version = subprocess.run([client, "--version"], capture_output=True, text=True, check=False).stdout
    major = version.removeprefix("Docker version ").split(".")[0]
    return major.isdigit() and int(major) < _FIRST_BUILDKIT_DEFAULT


def _start(reason: str, *, keep: bool) -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise UnavailableError(f"no Docker engine answers ({reason}); only root on Debian or Ubuntu can start one")
    command = apt.require("dockerd", "docker.io")
    if answers(f"unix://{_SOCKET}"):  # with a service manager, installing the package also starts the engine
        return
    processes.stop(NAME)
    root = storage(STORAGE)
    failure = UnavailableError("dockerd was not tried")
    for options in _ATTEMPTS:
        say(f"starting dockerd {' '.join(options)}")
        Path("/var/run/docker.pid").unlink(missing_ok=True)
        try:
            processes.start(
                NAME,
                [command, f"--data-root={root}", f"--host=unix://{_SOCKET}", *options],
                port=0, keep=keep, seconds=60, env=_path_with_sbin(),
                answers=lambda: answers(f"unix://{_SOCKET}"),
            )  # fmt: skip
        except UnavailableError as error:
            failure = error
        else:
            return
    raise failure


def _path_with_sbin() -> Mapping[str, str]:
    """Return a PATH with root's folders, because dockerd calls iptables and mkfs tools by name."""
    return {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])}
