"""Run one command in a Podman container: by image ID, without network, privileges or a writable root."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.engines.failures import EngineInfo, translate
from envkit.ground import identity
from envkit.ground.errors import EngineError, EnvkitError
from envkit.ground.paths import scratch
from envkit.ground.process import ask, child
from envkit.image.name import with_prefix
from envkit.run import containers
from envkit.run.command_line import entrypoint_option, gpu_options, isolation_options, shm_option
from envkit.run.containers import Command
from envkit.run.model import DATA, STRONG, RunLimits, RunResult
from envkit.run.pipes import collect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName

_ENGINE = EngineInfo(engine="podman")
_ASK_S = 120.0  # Podman's storage is slow when it has many images
_SAVE_S = 1800.0  # gigabytes, copied within one disk
# The wording depends on Podman's version: "Error: no such image x", "Error: x: image not known".
_NO_IMAGE = re.compile(r"no such image|image not known|failed to find image", re.IGNORECASE)
_NO_INIT = re.compile(r"container-init binary|catatonit|init binary", re.IGNORECASE)


class PodmanRunner:
    """Runs commands in images of this user's Podman."""

    name = "podman"
    isolation = STRONG

    def __init__(self, client: str = "podman") -> None:
        self._client = client

    def probe(self) -> str | None:
        """Return None if Podman works here, else the reason."""
        if shutil.which(self._client) is None:
            return "podman is not installed"
        try:
            self._ask("version", "--format", "{{.Client.Version}}")
        except EnvkitError as error:
            return error.message
        return None

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """Return an image's configuration; see `Runner`."""
        try:
            tree: Any = json.loads(self._ask("image", "inspect", image.typed.removeprefix("sha256:")))[0]
        except EngineError as error:
            if not _NO_IMAGE.search(error.message):
                raise
            raise EngineError(
                f"there is no image {image.typed!r:.200} in podman (envkit does not pull)",
                hint=with_prefix(image) or "podman images; podman pull IMAGE",
            ) from error
        ident = f"sha256:{tree['Id'].removeprefix('sha256:')}"
        return containers.described(tree, image=ident, labels=tree.get("Labels") or {})

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
        self.sweep()
        ident = str(self.inspect(image)["id"])
        limits = containers.bounded(limits, containers.memory_here())
        command = Command(image=ident, argv=tuple(argv), files=files, gpus=gpus, limits=limits, entrypoint=entrypoint)
        return containers.run_timed(command, lambda command: self._run(command, reporter))

    def save(self, image: ImageName, path: Path) -> None:
        """Write an image's configuration and layers to a new file; see `Storage`."""
        ident = str(self.inspect(image)["id"]).removeprefix("sha256:")
        # This format keeps the configuration's exact bytes. For some images, Podman's OCI archives have another one.
        argv = [self._client, "save", "--quiet", "--format", "docker-archive", "--output", str(path), ident]
        answer = ask(argv, patience_s=_SAVE_S)
        if answer.code:
            raise translate(answer.err.strip() or f"exit code {answer.code}", f"saving {image.typed}", _ENGINE)

    def sweep(self) -> int:
        """Remove the containers of runs that were killed and return how many."""
        removed = 0
        with contextlib.suppress(EnvkitError):  # leftovers must not stop a new run
            listing = self._ask("ps", "--all", "--format", "json", "--filter", f"label={identity.PREFIX}")
            rows: Any = json.loads(listing or "[]")
            for row in rows or ():
                if identity.abandoned(row.get("Labels") or {}):
                    self._remove(row["Id"])
                    removed += 1
        return removed

    def _run(self, command: Command, reporter: Reporter) -> RunResult:
        container, volumes = containers.container_name(), containers.folders(command.files)
        create = _create(container, command, volumes)
        try:
            try:
                self._ask(*create)
            except EnvkitError as error:
                if not _NO_INIT.search(error.message):
                    raise
                self._ask(*(item for item in create if item != "--init"))
            for volume in volumes:
                self._ask("cp", "-", f"{container}:{volume}", stdin=containers.archive(command.files, volume))
            with scratch() as folder:
                return self._watch(container, folder, command.image, command.limits, reporter)
        finally:
            self._remove(container)

    def _watch(self, container: str, folder: Path, image: str, limits: RunLimits, reporter: Reporter) -> RunResult:
        """Start the container, read its output until it ends, and return the result."""
        output = containers.Output(limits)
        began = time.monotonic()

        def kill(client: subprocess.Popen[bytes]) -> None:
            with contextlib.suppress(EnvkitError):
                self._ask("kill", "--signal", "KILL", container)
            client.kill()

        # Without the signal proxy: this process kills the container itself, even if the client hangs.
        with child(
            [self._client, "start", "--attach", "--sig-proxy=false", container],
            end=kill,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            deadline = began + limits.timeout_s + containers.GRACE_S
            over = collect(process, output, reporter, deadline=deadline, kill=lambda: kill(process))
        duration = time.monotonic() - began
        state: Any = json.loads(self._ask("container", "inspect", container))[0]["State"]
        ended = containers.exit_code(process.returncode, duration, limits, output, over=over, image=image[:19])
        # In these states the container was never started, for example because its program does not exist.
        if not output.cut and state.get("Status") in ("created", "configured", "initialized"):
            message = output.stderr.decode(errors="replace").strip() or "podman did not start it"
            raise translate(message, f"the run in {image[:19]}", _ENGINE)
        # Some versions of conmon report it with a file in the folder that they were started in.
        oom_killed = bool(state.get("OOMKilled")) or (folder / "oom").exists()
        # The client's own code is 125 if Podman fails, even after the command has ended (podman-run(1)).
        code = 0 if ended == 0 else int(state["ExitCode"])
        return output.result(code, duration, image=image, oom_killed=oom_killed)

    def _remove(self, container: str) -> None:
        """Remove a container and its volumes. If that fails, the next run removes them."""
        with contextlib.suppress(EnvkitError):
            self._ask("rm", "--force", "--ignore", "--volumes", "--time", "0", container)

    def _ask(self, *arguments: str, stdin: bytes = b"") -> str:
        answer = ask([self._client, *arguments], patience_s=_ASK_S, stdin=stdin)
        if answer.code:
            raise translate(answer.err.strip() or f"exit code {answer.code}", f"podman {arguments[0]}", _ENGINE)
        return answer.out


def _create(name: str, command: Command, volumes: tuple[str, ...]) -> list[str]:
    limits, argv = command.limits, command.argv
    words = ["create", "--name", name, "--pull=never", "--network=none", *isolation_options("podman")]
    words += [f"--security-opt=mask={containers.PRESSURE}"]  # Podman can mask a path, but not make it read-only
    words += [f"--tmpfs=/tmp:{containers.tmpfs(limits)}", f"--pids-limit={limits.pids}", shm_option(limits.shm_mb)]
    # The attached client receives the output. A log would be a second copy in Podman's storage.
    words += ["--log-driver=none", *ulimits()]
    # An entry point may be an init, which has to be process 1 as in normal use.
    words += [] if command.entrypoint else ["--init"]
    if limits.memory_mb is not None:
        # Equal limits for memory and memory with swap: no swap.
        words += [f"--memory={limits.memory_mb}m", f"--memory-swap={limits.memory_mb}m"]
    words += [] if limits.cpus is None else [f"--cpus={limits.cpus:g}"]
    words += [] if limits.user is None else [f"--user={limits.user}"]
    # Read-only for the run alone: `podman cp` writes to the volume itself.
    words += [f"--mount=type=volume,destination={volume},ro=true" for volume in volumes]
    words += [] if limits.data is None else [f"--mount=type=bind,source={limits.data},destination={DATA},ro=true"]
    words += [f"--label={key}={value}" for key, value in containers.labels().items()]
    words += gpu_options("podman", command.gpus)
    words += [] if command.entrypoint else [entrypoint_option(argv[:1])]
    return [*words, command.image.removeprefix("sha256:"), *(argv if command.entrypoint else argv[1:])]


def ulimits() -> list[str]:
    """Return `--ulimit` options no higher than this process's limits, which Podman's defaults may exceed.

    Podman's client lowers its own limit of processes to the kernel's highest process ID, so the container's has to be
    as low.
    """
    try:
        highest = int(Path("/proc/sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = [min(limit, highest) if limit >= 0 else highest for limit in resource.getrlimit(resource.RLIMIT_NPROC)]
    return [f"--ulimit=nofile={files[0]}:{files[1]}", f"--ulimit=nproc={processes[0]}:{processes[1]}"]
