"""Sessions: a user's own command in a container with its folders, ports, GPUs, shared memory, user and variables.

A session does not depend on the engine. `envkit.run.command_line` turns it into the command line of an engine's client.
"""

from __future__ import annotations

import errno
import posixpath
import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from envkit.image.name import ImageName

LOOPBACK = "127.0.0.1"
_MAX_PORT = 65535
# Folders that the kernel or the engine fills in a container; a mount over one breaks it, or hides the GPUs.
_SYSTEM = ("/proc", "/sys", "/dev", "/run/nvidia")
# Programs that do what process 1 has to do: forward signals and reap orphaned processes.
_INITS = frozenset({"tini", "tini-static", "dumb-init", "catatonit", "docker-init", "s6-svscan", "init", "systemd"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of this machine that is mounted in a container. Both paths are absolute."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A published port of a container: its address and port on this machine."""

    container: int
    host: int
    address: str = LOOPBACK
    kind: str = "tcp"

    def __str__(self) -> str:
        """The port as `docker run --publish` takes it."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.host}:{self.container}" + ("" if self.kind == "tcp" else f"/{self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One interactive command in one image."""

    image: ImageName  # its name for the runner
    argv: tuple[str, ...]  # arguments after the entry point; empty = the image's own command
    entrypoint: tuple[str, ...] = ()  # the image's entry point, which always runs
    mounts: tuple[Mount, ...] = ()
    ports: tuple[Port, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # in addition to the image's variables
    gpus: str | None = None  # None, `all`, or device numbers and UUIDs joined by commas
    shm_mb: int = 1024  # MiB of /dev/shm
    user: str | None = None  # 'uid:gid'; None = the image's own
    network: str = "default"  # 'default': the engine's own; 'host'; 'none'
    terminal: bool = False  # whether the command gets its own terminal
    workdir: str | None = None  # None = the image's own
    known: bool = False  # whether the image was built here or is attested

    @property
    def has_init(self) -> bool:
        """Whether the image's entry point is an init."""
        return bool(self.entrypoint) and PurePosixPath(self.entrypoint[0]).name in _INITS


def parse_port(text: str) -> Port:
    """Parse `PORT`, `HOST_PORT:PORT` or `ADDRESS:HOST_PORT:PORT`, optionally followed by `/tcp` or `/udp`.

    Raises:
        UsageError: the text is none of these.
    """
    plain, slash, kind = text.partition("/")
    rest, _, container = plain.rpartition(":")
    address, colon, host = rest.rpartition(":")
    address = address.strip("[]") if colon else LOOPBACK
    numbers = [container, host if ":" in plain else container]
    # Six digits are too large already, and Python refuses to convert thousands of digits.
    valid = all(number.isascii() and number.isdigit() and 0 < int(number[:6]) <= _MAX_PORT for number in numbers)
    if not valid or not address or (slash and kind not in ("tcp", "udp")) or (colon and not _is_address(address)):
        raise UsageError(
            f"--port {text!r:.80} is not a port", hint="--port 8888, --port 8889:8888 or --port 0.0.0.0:8889:8888"
        )
    return Port(container=int(container), host=int(numbers[1]), address=address, kind=kind or "tcp")


def parse_mount(text: str, target: str, *, read_only: bool, option: str) -> Mount:
    """Parse `DIR` or `DIR:TARGET`; `target` is the mount point of a folder without a target.

    Raises:
        UsageError: the folder does not exist, it is the root, or the target is not an absolute path.
    """
    # A folder with a colon in its own name is not split here, so that the check below can name it.
    source, colon, given = (text, "", "") if Path(text).exists() else text.rpartition(":")
    if not colon:
        source = text
    folder = Path(source).expanduser()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(
            f"{option} {source!r:.200} {what}", hint=f"mkdir -p {source}" if what[0] == "d" else f"{option} DIR"
        )
    mount_point = given or target
    if not mount_point.startswith("/") or ".." in mount_point.split("/") or mount_point.rstrip("/") == "":
        raise UsageError(
            f"{option}: {mount_point!r:.200} is not a folder in a container", hint=f"{option} {source}:/data"
        )
    # posixpath.normpath keeps two slashes at the beginning.
    target = "/" + posixpath.normpath(mount_point).lstrip("/")
    if any(target == place or target.startswith(f"{place}/") for place in _SYSTEM):
        raise UsageError(
            f"{option}: {mount_point!r:.200} belongs to the container's system", hint=f"{option} {source}:/data"
        )
    resolved = folder.resolve()
    for path in (str(resolved), mount_point):
        if any(char in path for char in ":,\n\0"):
            raise UsageError(
                f"{option}: {path!r:.200} has a character that engines read as a separator",
                hint="rename the folder, or use a link to it without ':' and ',' in its name",
            )
    if resolved == Path("/"):
        raise UsageError(f"{option} / would give the container the whole machine", hint=f"{option} DIR")
    return Mount(source=resolved, target=mount_point.rstrip("/"), read_only=read_only)


def is_free(port: Port) -> bool:
    """Return whether no program listens on a port of this machine.

    Raises:
        EnvironmentProblem: this machine does not have the address, or the port needs more privileges.
    """
    family = socket.AF_INET6 if ":" in port.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM if port.kind == "udp" else socket.SOCK_STREAM) as probe:
        # Otherwise a port whose last connection has just been closed would seem to be in use (TIME_WAIT).
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.address, port.host))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise EnvironmentProblem(
                f"port {port.host} of {port.address} cannot be used: {error.strerror or error}",
                # Lower ports need CAP_NET_BIND_SERVICE.
                hint=f"--port {LOOPBACK}:{max(port.host, 1024)}:{port.container}",
            ) from error
    return True


def in_use(port: Port) -> EnvironmentProblem:
    """Return the error for a port that another program uses."""
    other = port.host + 1 if port.host < _MAX_PORT else port.host - 1
    return EnvironmentProblem(
        f"port {port.host} of {port.address} is in use by another program",
        hint=f"envkit run --port {other}:{port.container}",
    )


def _is_address(text: str) -> bool:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        socket.inet_pton(family, text)
    except OSError:
        return False
    return True
