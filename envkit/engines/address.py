"""Find and connect to the Docker engine, and explain why it cannot be reached."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.text import neutral

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

C = TypeVar("C", bound="Client")
DEFAULT = "unix:///var/run/docker.sock"
PATIENCE_S = 8.0  # an engine that has not answered by then counts as hung
OLDEST_API = "1.40"  # Docker 19.03: device requests, BuildKit, platforms
_SCHEMES = ("unix", "tcp", "http", "https", "ssh", "npipe")


def docker_address(environ: Mapping[str, str] | None = None) -> str:
    """Return the engine's address: DOCKER_HOST, else the docker client's current context, else the default socket."""
    env = os.environ if environ is None else environ
    return env.get("DOCKER_HOST") or _context_host(env) or DEFAULT


class Client(Protocol):
    """The part of the SDK's client that `greet` uses."""

    def version(self, api_version: bool = True) -> dict[str, Any]:
        """Return the engine's versions."""

    def close(self) -> None:
        """Close its connections."""


def greet(open_client: Callable[[str], C], address: str, foreign: tuple[type[Exception], ...]) -> C:
    """Return a client that uses the API version of the engine at `address`.

    `open_client` makes a client for an API version; `foreign` has the exceptions of its library.

    Raises:
        EnvironmentProblem: the engine does not answer, is something else, or is too old.
    """
    problem = _unusable(address)
    if problem is not None:
        raise problem
    try:
        first = open_client(OLDEST_API)
    except foreign as error:
        raise refusal(address, error) from error
    try:
        # Without a version in the path: engines refuse versions older than their minimum (1.44 since Docker 29).
        version = str(first.version(api_version=False)["ApiVersion"])
        numbers = tuple(int(part) for part in version.split("."))
    except foreign as error:
        raise refusal(address, error) from error
    finally:
        first.close()
    if numbers < tuple(int(part) for part in OLDEST_API.split(".")):
        raise EnvironmentProblem(
            f"the Docker engine at {address} has API version {version}; envkit needs {OLDEST_API}",
            hint="update the engine: Docker 19.03 or later",
        )
    return open_client(version)


def refusal(address: str, error: BaseException) -> EnvironmentProblem:
    """Return why the engine at `address` cannot be used, from a failed call and the state of the socket."""
    problem = _unusable(address)
    if problem is not None:
        return problem
    text = " ".join(str(item) for item in _chain(error))
    kinds = {type(item).__name__ for item in _chain(error)}
    if "timed out" in text or kinds & {"ReadTimeout", "ReadTimeoutError", "ConnectTimeout", "TimeoutError"}:
        return EnvironmentProblem(
            f"the Docker engine at {address} accepts connections but did not answer within {PATIENCE_S:.0f} s",
            hint="systemctl restart docker",
        )
    if kinds & {"ConnectionRefusedError", "gaierror", "NewConnectionError"}:
        return EnvironmentProblem(
            f"no Docker engine answers at {address}", hint="unset DOCKER_HOST, or correct the address in it"
        )
    return EnvironmentProblem(
        f"the server at {address} is not a Docker engine: {neutral(text)[:200]}",
        hint="unset DOCKER_HOST, or correct the address in it",
    )


def _unusable(address: str) -> EnvironmentProblem | None:
    """Return why an address cannot be connected to, None if it can."""
    parts = urlsplit(address)
    if parts.scheme not in _SCHEMES:
        return EnvironmentProblem(
            f"DOCKER_HOST is {address!r:.200}, which is not an engine address", hint=f"export DOCKER_HOST={DEFAULT}"
        )
    if parts.scheme != "unix":
        return None
    try:
        # The SDK wraps errors of the socket in other errors; a connection of our own shows which one it is.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PATIENCE_S)
            probe.connect(parts.path)
    except OSError as error:
        return _socket_refusal(parts.path, error)
    return None


def _socket_refusal(path: str, error: OSError) -> EnvironmentProblem:
    start = "systemctl start docker"
    match error:
        case FileNotFoundError():
            return EnvironmentProblem(
                f"no Docker engine found: {path} does not exist",
                hint=f"{start}   # to install it on Debian or Ubuntu: apt-get install docker.io",
            )
        case PermissionError():
            return EnvironmentProblem(
                f"this user may not use {path} (permission denied)",
                hint="sudo usermod -aG docker $USER; newgrp docker",
            )
        case ConnectionRefusedError():
            return EnvironmentProblem(f"the Docker engine is not running: nothing listens at {path}", hint=start)
        case _:
            return EnvironmentProblem(f"cannot connect to {path}: {error.strerror or error}", hint=start)


def _context_host(env: Mapping[str, str]) -> str | None:
    """Return the address of the docker client's current context; None for the default context or an unreadable one."""
    folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/nonexistent") / ".docker")
    try:
        name = env.get("DOCKER_CONTEXT") or json.loads((folder / "config.json").read_text())["currentContext"]
        # The docker client names the folder of a context by the SHA-256 of the context's name.
        meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
        host = json.loads(meta.read_text())["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return host if isinstance(host, str) and host else None


def _chain(error: BaseException | None) -> list[BaseException]:
    errors: list[BaseException] = []
    # Causes and contexts can form a loop.
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors
