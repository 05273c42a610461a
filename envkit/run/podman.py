"""Podman containers made for one command: by image id, without network, power or a writable root."""

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

from envkit.engine.failures import Place, translate
from envkit.ground import identity
from envkit.ground.errors import EngineError, EnvkitError
from envkit.ground.paths import scratch
from envkit.ground.process import ask, child
from envkit.run import cage
from envkit.run.cage import Command
from envkit.run.command_line import entrypoint_option, gpu_options, isolation_options, shm_option
from envkit.run.model import DATA, STRONG, RunLimits, RunResult
from envkit.run.pipes import collect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter

_PLACE = Place(engine="podman")
_ASK_S = 120.0  # with many images its storage is slow
_SAVE_S = 1800.0  # gigabytes from one disk to the same
_NO_IMAGE = re.compile(r"no such image|image not known|failed to find image", re.IGNORECASE)
_NO_INIT = re.compile(r"container-init binary|catatonit|init binary", re.IGNORECASE)


class PodmanRunner:
    """Runs commands in images of this machine's and user's podman."""

    name = "podman"
    isolation = STRONG

    def __init__(self, client: str = "podman") -> None:
        self._client = client

    def probe(self) -> str | None:
        """None when podman works here, else why not."""
        if shutil.which(self._client) is None:
            return "podman is not installed"
        try:
            self._ask("version", "--format", "{{.Client.Version}}")
        except EnvkitError as error:
            return error.message
        return None

    def inspect(self, image: str) -> Mapping[str, Any]:
        """An image's configuration; see `Runner`."""
        try:
            tree: Any = json.loads(self._ask("image", "inspect", image.removeprefix("sha256:")))[0]
        except EngineError as error:
            if not _NO_IMAGE.search(error.message):
                raise
            raise EngineError(
                f"there is no image {image!r:.200} in podman (envkit does not pull)",
                hint="podman images; podman pull IMAGE",
            ) from error
        ident = f"sha256:{tree['Id'].removeprefix('sha256:')}"
        return cage.described(tree, image=ident, labels=tree.get("Labels") or {})

    def run(
        self,
        image: str,
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
        limits = cage.bounded(limits, cage.memory_here())
        command = Command(image=ident, argv=tuple(argv), files=files, gpus=gpus, limits=limits, entrypoint=entrypoint)
        return cage.run_timed(command, lambda command: self._run(command, reporter))

    def save(self, image: str, path: Path) -> None:
        """Write an image's configuration and layers to a new file; see `Storage`."""
        ident = str(self.inspect(image)["id"]).removeprefix("sha256:")
        # This format keeps the configuration byte by byte; podman's OCI archives write another one of some images.
        argv = [self._client, "save", "--quiet", "--format", "docker-archive", "--output", str(path), ident]
        answer = ask(argv, patience_s=_SAVE_S)
        if answer.code:
            raise translate(answer.err.strip() or f"exit code {answer.code}", f"saving {image}", _PLACE)

    def sweep(self) -> int:
        """Remove containers of runs that ended; returns how many."""
        removed = 0
        with contextlib.suppress(EnvkitError):
            listing = self._ask("ps", "--all", "--format", "json", "--filter", f"label={identity.PREFIX}")
            rows: Any = json.loads(listing or "[]")
            for row in rows or ():
                if identity.abandoned(row.get("Labels") or {}):
                    self._remove(row["Id"])
                    removed += 1
        return removed

    def _run(self, command: Command, reporter: Reporter) -> RunResult:
        container, volumes = cage.container_name(), cage.folders(command.files)
        create = _create(container, command, volumes)
        try:
            try:
                self._ask(*create)
            except EnvkitError as error:
                if not _NO_INIT.search(error.message):
                    raise
                self._ask(*(item for item in create if item != "--init"))
            for volume in volumes:
                self._ask("cp", "-", f"{container}:{volume}", stdin=cage.archive(command.files, volume))
            with scratch() as folder:
                return self._watch(container, folder, command.image, command.limits, reporter)
        finally:
            self._remove(container)

    def _watch(self, container: str, folder: Path, image: str, limits: RunLimits, reporter: Reporter) -> RunResult:
        """Start the container, listen to it until it ends, and read how."""
        output = cage.Output(limits)
        began = time.monotonic()
        # Without the proxy for signals: this process ends the container itself, also where the client is stuck.

        def kill(client: subprocess.Popen[bytes]) -> None:
            with contextlib.suppress(EnvkitError):
                self._ask("kill", "--signal", "KILL", container)
            client.kill()

        with child(
            [self._client, "start", "--attach", "--sig-proxy=false", container],
            end=kill,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            deadline = began + limits.timeout_s + cage.GRACE_S
            over = collect(process, output, reporter, deadline=deadline, kill=lambda: kill(process))
        duration = time.monotonic() - began
        state: Any = json.loads(self._ask("container", "inspect", container))[0]["State"]
        ended = cage.exit_code(process.returncode, duration, limits, output, over=over, image=image[:19])
        if not output.cut and state.get("Status") in ("created", "configured", "initialized"):
            said = output.stderr.decode(errors="replace")
            raise translate(said.strip() or "podman did not start it", f"the run in {image[:19]}", _PLACE)
        return RunResult(
            exit_code=0 if ended == 0 else int(state["ExitCode"]),
            stdout=bytes(output.stdout),
            stderr=bytes(output.stderr),
            duration_s=duration,
            # Some versions of conmon note it as a file, in the folder they were started in.
            oom_killed=bool(state.get("OOMKilled")) or (folder / "oom").exists(),
            image_id=image,
            output_cut=output.cut,
        )

    def _remove(self, container: str) -> None:
        """Remove a container and its volumes; what cannot be removed now is removed by the next run."""
        with contextlib.suppress(EnvkitError):
            self._ask("rm", "--force", "--ignore", "--volumes", "--time", "0", container)

    def _ask(self, *arguments: str, stdin: bytes = b"") -> str:
        answer = ask([self._client, *arguments], patience_s=_ASK_S, stdin=stdin)
        if answer.code:
            raise translate(answer.err.strip() or f"exit code {answer.code}", f"podman {arguments[0]}", _PLACE)
        return answer.out


def _create(name: str, command: Command, volumes: tuple[str, ...]) -> list[str]:
    limits, argv = command.limits, command.argv
    words = ["create", "--name", name, "--pull=never", "--network=none", *isolation_options("podman")]
    words += [f"--security-opt=mask={cage.PRESSURE}"]  # podman can hide a path, but not make it read-only
    words += [f"--tmpfs=/tmp:{cage.tmpfs(limits)}", f"--pids-limit={limits.pids}", shm_option(limits.shm_mb)]
    # What the command writes is read from the attached client; a log would be a second copy in podman's storage.
    words += ["--log-driver=none", *ulimits()]
    # An entry point brings its own init, and has to be process 1 as in real use.
    words += [] if command.entrypoint else ["--init"]
    if limits.memory_mb is not None:
        # The limit with swap is the same number, so there is no swap on top.
        words += [f"--memory={limits.memory_mb}m", f"--memory-swap={limits.memory_mb}m"]
    words += [] if limits.cpus is None else [f"--cpus={limits.cpus:g}"]
    words += [] if limits.user is None else [f"--user={limits.user}"]
    words += [f"--mount=type=volume,destination={volume},ro=true" for volume in volumes]
    words += [] if limits.data is None else [f"--mount=type=bind,source={limits.data},destination={DATA},ro=true"]
    words += [f"--label={key}={value}" for key, value in cage.labels().items()]
    words += gpu_options("podman", command.gpus)
    words += [] if command.entrypoint else [entrypoint_option(argv[:1])]
    return [*words, command.image.removeprefix("sha256:"), *(argv if command.entrypoint else argv[1:])]


def ulimits() -> list[str]:
    """Limits that every machine can give: podman's own defaults are above what an unprivileged one may set.

    Podman's client lowers its own limit of processes to the kernel's highest process id.
    """
    try:
        most = int(Path("/proc/sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = [min(limit, most) if limit >= 0 else most for limit in resource.getrlimit(resource.RLIMIT_NPROC)]
    return [f"--ulimit=nofile={files[0]}:{files[1]}", f"--ulimit=nproc={processes[0]}:{processes[1]}"]
