"""A Docker engine: the one that answers, else one started here (as root on Debian or Ubuntu)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from tests.world import apt, processes
from tests.world.places import UnavailableError, cache, locked, say

NAME = "dockerd"
STORAGE = "docker"
_SOCKET = "/var/run/docker.sock"
# From what a full machine offers down to what a nested one allows.
_ATTEMPTS = (
    ("--storage-driver=overlay2",),
    ("--storage-driver=overlay2", "--iptables=false", "--ip6tables=false", "--bridge=none"),
    ("--iptables=false", "--ip6tables=false", "--bridge=none"),
)
_FIRST_BUILDKIT_DEFAULT = 23  # clients before it carry BuildKit themselves; later ones need the buildx plugin


@dataclass(frozen=True, slots=True)
class Docker:
    """An engine that answers: its address, and a client command that can use BuildKit."""

    host: str
    client: str


def ensure_docker(*, keep: bool) -> Docker:
    """The engine that answers, else one that is installed and started; raises UnavailableError with the reason."""
    host = os.environ.get("DOCKER_HOST") or f"unix://{_SOCKET}"
    with locked("docker"):
        reason = silence(host)
        if reason and os.environ.get("DOCKER_HOST"):
            raise UnavailableError(f"no Docker engine answers at DOCKER_HOST={host}: {reason}")
        if reason:
            _start(reason, keep=keep)
        return Docker(host, buildkit_client())


def answers(host: str) -> bool:
    """Whether a Docker engine answers at this address."""
    return silence(host) is None


def silence(host: str) -> str | None:
    """Why no Docker engine answers at this address, in the client's own words; None when one does."""
    clients = _clients()
    if not clients:
        return "no docker command here"
    command = [clients[0], "--host", host, "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return f"{host} is silent"
    return None if done.returncode == 0 else " ".join(done.stderr.split()) or f"{host} is silent"


@once
def buildkit_client() -> str:
    """The first `docker` command that can build with BuildKit; the first one on PATH may lack its plugin."""
    found = _clients()
    if not any(_has_buildkit(client) for client in found):
        apt.install("docker.io")
        found = _clients()
    for client in found:
        if _has_buildkit(client):
            return client
    raise UnavailableError(f"no docker command here can use BuildKit (tried: {', '.join(found) or 'none found'})")


def _clients() -> list[str]:
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"]
    found = [shutil.which("docker", path=folder) for folder in folders]
    return list(dict.fromkeys(client for client in found if client))


def _has_buildkit(client: str) -> bool:
    if subprocess.run([client, "buildx", "version"], capture_output=True, check=False).returncode == 0:
        return True
    said = subprocess.run([client, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.removeprefix("Docker version ").split(".")[0]
    return major.isdigit() and int(major) < _FIRST_BUILDKIT_DEFAULT


def _start(reason: str, *, keep: bool) -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise UnavailableError(f"no Docker engine answers ({reason}); only root on Debian or Ubuntu gets one started")
    command = apt.require("dockerd", "docker.io")
    if answers(f"unix://{_SOCKET}"):  # where a service manager runs, installing it also starts it
        return
    processes.stop(NAME)
    root = cache(STORAGE)
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
    """dockerd calls iptables and mkfs tools by name; a login without root's PATH lacks their folders."""
    return {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])}
