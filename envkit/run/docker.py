"""Run one command in a Docker container: by image ID, without network, privileges or a writable root."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import docker.types
import docker.utils
import docker.utils.socket
import requests
import urllib3.exceptions

from envkit.engines.address import PATIENCE_S, docker_address, greet
from envkit.engines.failures import EngineInfo, engine_lost, translate
from envkit.engines.stream import Stream
from envkit.ground import identity
from envkit.ground.errors import EngineError, EnvkitError
from envkit.ground.text import Lines
from envkit.image.layout import write_error
from envkit.image.name import with_prefix
from envkit.run import containers
from envkit.run.containers import Command
from envkit.run.model import DATA, STRONG, RunLimits, RunResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName

# What the SDK raises: its own errors, and those of its HTTP library, which it does not translate.
_FOREIGN = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
# The SDK raises these while connecting if the client's configuration file has unexpected content.
_ODD_CONFIGURATION = (ValueError, AttributeError, TypeError, KeyError)
_ENGINE = EngineInfo(engine="docker")
_STDERR = 2  # the stream's number in the engine's frames
# The engine's default list, which a value replaces as a whole, and pressure stall information.
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", containers.PRESSURE]
_SAVE_S = 1800  # an engine may collect the whole image before it sends the first byte
_PIECE = 1 << 20
_START_S = 120  # an engine under load may need this long to create a container from a large image


class DockerRunner:
    """Runs commands in images of the Docker engine at an address."""

    name = "docker"
    isolation = STRONG

    def __init__(self, address: str | None = None) -> None:
        self.address = address or docker_address()

    def probe(self) -> str | None:
        """Return None if the engine answers, else the reason."""
        try:
            self._connect().close()
        except EnvkitError as error:
            return error.message
        return None

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """Return an image's configuration; see `Runner`."""
        with self._connect() as client:
            tree = _image(client, image)
        return containers.described(tree, image=tree["Id"], labels=(tree.get("Config") or {}).get("Labels") or {})

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """Run a command; see `Runner`."""
        with self._connect() as client:
            sweep(client)
            ident = _image(client, image)["Id"]
            # The memory of the engine's machine, which may be another one.
            limits = containers.bounded(limits, _memory(client))
            command = Command(
                image=ident, argv=tuple(argv), files=files, gpus=gpus, limits=limits, entrypoint=entrypoint
            )
            return containers.run_timed(command, lambda command: _run(client, command, reporter))

    def save(self, image: ImageName, path: Path) -> None:
        """Write an image's configuration and layers to a new file; see `Storage`."""
        with self._connect() as client:
            ident = _image(client, image)["Id"]
            client.timeout = _SAVE_S
            try:
                with contextlib.closing(client.get_image(ident, chunk_size=_PIECE)) as pieces:
                    _write(path, pieces)
            except docker.errors.APIError as error:
                raise translate(error.explanation or str(error), f"saving {image.typed}", _ENGINE) from error
            except _FOREIGN as error:
                raise engine_lost(f"saving {image.typed}", _ENGINE) from error

    def _connect(self) -> docker.APIClient:
        environment = docker.utils.kwargs_from_env()

        def opened(version: str) -> docker.APIClient:
            return docker.APIClient(
                base_url=environment.get("base_url") or self.address,
                tls=environment.get("tls", False),
                version=version,
                timeout=int(PATIENCE_S),
            )

        client = greet(opened, self.address, (*_FOREIGN, *_ODD_CONFIGURATION))
        client.timeout = _START_S
        return client


def sweep(client: docker.APIClient) -> int:
    """Remove the containers of runs that were killed and return how many."""
    removed = 0
    with contextlib.suppress(*_FOREIGN):  # leftovers must not stop a new run
        for row in client.containers(all=True, filters={"label": [identity.PREFIX]}):
            if identity.abandoned(row.get("Labels") or {}):
                client.remove_container(row["Id"], force=True, v=True)
                removed += 1
    return removed


def _write(path: Path, pieces: Iterator[bytes]) -> None:
    """Write the engine's output to a file. An OSError here is about this disk, not about the engine."""
    with path.open("xb") as file:
        for piece in pieces:
            try:
                file.write(piece)
            except OSError as error:
                raise write_error(error, path) from error


def _memory(client: docker.APIClient) -> int | None:
    """Return the memory of the engine's machine in bytes."""
    try:
        memory = client.info().get("MemTotal")
    except _FOREIGN as error:
        raise engine_lost("asking for its memory", _ENGINE) from error
    return memory if isinstance(memory, int) and memory > 0 else None


def _image(client: docker.APIClient, image: ImageName) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = client.inspect_image(image.typed)  # type: ignore[no-untyped-call]
    except docker.errors.ImageNotFound as error:
        raise EngineError(
            f"there is no image {image.typed!r:.200} in the Docker engine (envkit does not pull)",
            hint=with_prefix(image) or "docker images; docker pull IMAGE",
        ) from error
    except docker.errors.APIError as error:
        raise EngineError(
            f"{image.typed!r:.200} is not an image name: {error.explanation or error}", hint="docker images"
        ) from error
    except _FOREIGN as error:
        raise engine_lost(f"looking at {image.typed}", _ENGINE) from error
    return tree


def _run(client: docker.APIClient, command: Command, reporter: Reporter) -> RunResult:
    doing = f"the run in {command.image[:19]}"
    volumes = containers.folders(command.files)
    # Named in advance: a signal may arrive after the engine has created the container and before it returns the ID.
    container = containers.container_name()
    try:
        _create(client, container, command, volumes)
        for volume in volumes:
            # Into volumes, because the engine refuses to copy files into a container whose root is read-only.
            client.put_archive(container, volume, containers.archive(command.files, volume))
        return _watch(client, container, command.image, command.limits, reporter)
    except docker.errors.APIError as error:
        raise translate(error.explanation or str(error), doing, _ENGINE) from error
    except _FOREIGN as error:
        raise engine_lost(doing, _ENGINE) from error
    finally:
        _remove(client, container)


def _create(client: docker.APIClient, name: str, command: Command, volumes: tuple[str, ...]) -> None:
    limits, argv = command.limits, list(command.argv)
    host = client.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        read_only=True,
        tmpfs={"/tmp": containers.tmpfs(limits)},  # noqa: S108 - a file system inside the container
        pids_limit=limits.pids,
        mem_limit=None if limits.memory_mb is None else limits.memory_mb << 20,
        # Equal to the memory limit: no swap on top of it.
        memswap_limit=None if limits.memory_mb is None else limits.memory_mb << 20,
        nano_cpus=None if limits.cpus is None else int(limits.cpus * 1e9),
        shm_size=limits.shm_mb << 20,
        init=not command.entrypoint,  # an entry point may be an init, which has to be process 1 as in normal use
        device_requests=_devices(command.gpus),
        mounts=_mounts(limits.data),
        # The attached socket receives the output. A log would be a second copy on the engine's disk.
        log_config=docker.types.LogConfig(type="none"),
    )
    host["ReadonlyPaths"] = _READ_ONLY  # the SDK has no parameter for it
    client.create_container(
        command.image,
        command=argv if command.entrypoint else argv[1:],
        entrypoint=None if command.entrypoint else argv[:1],
        user=limits.user,
        volumes=list(volumes),
        labels=containers.labels(),
        name=name,
        host_config=host,
    )


def _mounts(data: Path | None) -> list[docker.types.Mount]:
    # A mount, not a bind (`-v`): for that, the engine would create a missing folder, and a colon would separate paths.
    return [] if data is None else [docker.types.Mount(DATA, str(data), type="bind", read_only=True)]


def _devices(gpus: str | None) -> list[docker.types.DeviceRequest] | None:
    if gpus is None:
        return None
    if gpus == "all":
        # -1 is all of them: the API's form of `--gpus all`.
        return [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    return [docker.types.DeviceRequest(device_ids=gpus.split(","), capabilities=[["gpu"]])]


def _watch(client: docker.APIClient, container: str, image: str, limits: RunLimits, reporter: Reporter) -> RunResult:
    """Start the container, read its output until it ends, and return the result."""
    output, lines = containers.Output(limits), Lines()
    # Attached before the start: an attachment receives later output only, and a short command would have ended.
    socket = client.attach_socket(container, params={"stdout": 1, "stderr": 1, "stream": 1})

    def frames() -> Iterator[tuple[int, bytes]]:
        pieces: Iterator[tuple[int, bytes]] = docker.utils.socket.frames_iter(socket, tty=False)  # type: ignore[no-untyped-call]
        return pieces

    def cut() -> None:
        # The SDK returns a file that wraps a socket of a response. Closing one leaves the others open.
        raw = getattr(socket, "_sock", None)
        # First the shutdown: it wakes a thread that is blocked in recv(2), which closing the descriptor does not.
        for end in (lambda: raw and raw.shutdown(2), socket.close, lambda: raw and raw.close()):
            with contextlib.suppress(OSError, ValueError):
                end()

    try:
        client.start(container)
    except BaseException:
        cut()
        raise
    began, over = time.monotonic(), False
    with Stream(frames, cut, limits.timeout_s + containers.GRACE_S) as stream:
        try:
            for kind, piece in stream:
                for line in lines.feed(piece.decode(errors="replace")) if kind == _STDERR else ():
                    reporter.log(line)
                was_complete = output.complete
                if not output.take(error=kind == _STDERR, piece=piece):
                    break
                if output.complete and not was_complete:
                    stream.within(containers.END_S)
        except TimeoutError:
            if not output.complete:
                raise containers.over_time(limits, image[:19]) from None
            over = True
    if output.cut or over:
        with contextlib.suppress(*_FOREIGN):
            client.kill(container)
    # Do not wait after a time limit: a process that hangs in a driver cannot be killed, and neither can its container.
    code = 0 if over else int(client.wait(container, timeout=_START_S)["StatusCode"])
    duration = time.monotonic() - began
    state = client.inspect_container(container)["State"]
    code = containers.exit_code(code, duration, limits, output, over=over, image=image[:19])
    return output.result(code, duration, image=image, oom_killed=bool(state.get("OOMKilled")))


def _remove(client: docker.APIClient, container: str) -> None:
    """Remove a container and its volumes. If that fails, the next run removes them."""
    # The engine answers 409 while a removal is in progress, which takes seconds under load.
    for _ in range(20):
        try:
            client.remove_container(container, force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError:
            time.sleep(0.25)
        except _FOREIGN:
            return
