"""Build with the Docker engine's BuildKit through the docker client: cache mounts, secrets, parallel stages."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.engines import journal
from envkit.engines.context import unpack
from envkit.engines.docker import DockerEngine
from envkit.engines.failures import EngineInfo, disk_full, engine_lost, registry_away, translate
from envkit.engines.model import Job, LocalImage, Probe
from envkit.ground.errors import RAISE_TIMEOUT, EngineError, EnvironmentProblem, EnvkitError, TimeLimitError
from envkit.ground.process import ask, follow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter

_USUAL_PATHS = ("/usr/bin/docker", "/usr/local/bin/docker")
_BUILDX_ONLY_SINCE = 23  # from this version on, docker clients build only through the buildx plugin
# #12 [build 3/9] RUN pip install torch
_STEP = re.compile(r"#\d+ \[(?:[\w.-]+ )?(\d+)/(\d+)\] ")
# ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 2
_EXIT = re.compile(r"(?:exit code: |exit status )(\d+)")
_LOST = re.compile(r"cannot connect to the docker daemon|error reading from server: eof|unexpected eof", re.IGNORECASE)


class BuildKitEngine:
    """BuildKit of the Docker engine at an address. Images go into that engine's storage."""

    name = "buildkit"
    syntax = "buildkit"

    def __init__(self, address: str | None = None, client: str = "docker") -> None:
        self._store = DockerEngine(address)
        self._client = client

    def probe(self) -> Probe:
        """Return whether engine and client can build with BuildKit; see `Engine`."""
        answer = self._store.probe()
        if not answer.available:
            return Probe(name=self.name, available=False, detail=answer.detail, hint=answer.hint)
        try:
            client, _ = find_client(self._client)
        except EnvkitError as error:
            return Probe(name=self.name, available=False, detail=error.message, hint=error.hint)
        return Probe(name=self.name, available=True, detail=f"{answer.detail}, BuildKit through {client}")

    def make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter) -> str:
        """Build with BuildKit; see `Engine`."""
        client, buildx = find_client(self._client)
        info, doing = self.info(), f"the build of {job.name}"
        with (
            journal.Journal(job.state, self.name) as notes,
            tempfile.TemporaryDirectory(prefix="envkit-") as folder,
        ):
            notes.folder(Path(folder))
            iidfile = Path(folder) / "iid"
            # A folder, not a tar on stdin: the engine fetches such a tar indirectly, which fails under load.
            unpack(context, Path(folder) / "context")
            where = ["its start"]

            def on_line(line: str) -> None:
                if step := _STEP.match(line):
                    where[0] = line.partition(" ")[2]
                    reporter.advance(int(step[1]) - 1, int(step[2]))
                if line.strip():
                    log.write(line)

            ended = follow(
                _arguments(client, job, Path(folder), buildx=buildx),
                on_line,
                env=self._environment(folder),
                limit_s=job.timeout_s,
                on_start=notes.process,
            )
            image = iidfile.read_text().strip() if iidfile.exists() else ""
        if ended.timed_out:
            raise TimeLimitError(
                f"{doing} reached its time limit of {job.timeout_s:g} s at {where[0][:160]}",
                hint=RAISE_TIMEOUT,
                details=log.details(),
            )
        if ended.code or not image:
            raise _failure(doing, where[0], info, log)
        return image

    def info(self) -> EngineInfo:
        """Return the engine's name and storage folder."""
        return EngineInfo(engine=self.name, storage=self._store.info().storage)

    def digest(self, reference: str) -> str:
        """Return the digest of a reference in its registry; see `Engine`."""
        return self._store.digest(reference)

    def local(self, reference: str) -> LocalImage | None:
        """Return an image of the engine's storage; see `Engine`."""
        return self._store.local(reference)

    def import_base(self, tar: Path, reference: str, env: Mapping[str, str]) -> LocalImage:
        """Import a root file system; see `Engine`."""
        return self._store.import_base(tar, reference, env)

    def tag(self, image: str, reference: str) -> None:
        """Name an image; see `Engine`."""
        self._store.tag(image, reference)

    def has_bridge(self) -> bool:
        """Return whether the engine has a bridge network."""
        return self._store.has_bridge()

    def sweep(self, state: Path) -> int:
        """Remove what killed runs left. BuildKit's steps end with its client and leave no containers."""
        for note in journal.abandoned(state, self.name):
            journal.end_processes(note)
            journal.forget(note)
        return self._store.sweep(state)

    def _environment(self, folder: str) -> dict[str, str]:
        # The user's variables of these names could select another builder or another output.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("BUILDKIT_", "BUILDX_"))}
        own = {"DOCKER_BUILDKIT": "1", "DOCKER_HOST": self._store.address, "TMPDIR": folder}
        # Exactly one image in the engine's own storage: no index with attestations, no other builder.
        return kept | own | {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDX_BUILDER": "default"}


@lru_cache(maxsize=4)
def find_client(client: str) -> tuple[str, bool]:
    """Return a docker client that can use BuildKit, and whether it does so through buildx.

    `docker` means the first usable client on PATH or in the usual folders. Any other value is the only candidate.

    Raises:
        EnvironmentProblem: no client can; the message gives the reason for each.
    """
    candidates = [client] if client != "docker" else [*_on_path(), *_USUAL_PATHS]
    reasons: list[str] = []
    for candidate in dict.fromkeys(candidates):
        buildx, reason = _ability(candidate)
        if not reason:
            return candidate, buildx
        reasons.append(f"{candidate}: {reason}")
    raise EnvironmentProblem(
        "no docker client here can use BuildKit: " + ("; ".join(reasons) or "there is no docker client"),
        hint="apt-get install docker.io, or install the buildx plugin; or use --engine docker",
    )


def _ability(client: str) -> tuple[bool, str]:
    """Return whether a client builds through buildx, and why it cannot use BuildKit ('': it can)."""
    path = shutil.which(client)
    if path is None:
        return False, "not found"
    if _output([path, "buildx", "version"]) is not None:
        return True, ""
    # Docker version 20.10.24+dfsg1, build 297e128
    version = re.search(r"version (\d+)\.", _output([path, "--version"]) or "")
    if version is None:
        return False, "does not report its version"
    if int(version[1]) >= _BUILDX_ONLY_SINCE:
        return False, f"version {version[1]} needs the buildx plugin, which is not installed"
    return False, ""


def _output(argv: list[str]) -> str | None:
    try:
        answer = ask(argv, patience_s=5.0)
    except EnvironmentProblem:
        return None
    return answer.out if answer.code == 0 else None


def _on_path() -> list[str]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [str(path) for folder in folders if folder and (path := Path(folder) / "docker").exists()]


def _arguments(client: str, job: Job, folder: Path, *, buildx: bool) -> list[str]:
    argv = [client, "build", "--progress", "plain", "--iidfile", str(folder / "iid")]
    # Without --load, some builders of buildx keep the image in their own cache.
    argv += ["--load"] if buildx else []
    argv += ["--no-cache"] if job.no_cache else []
    argv += ["--network", job.network] if job.network else []
    for key, value in job.labels.items():
        argv += ["--label", f"{key}={value}"]
    for ident, file in job.secrets:
        argv += ["--secret", f"id={ident},src={file}"]
    return [*argv, str(folder / "context")]


def _failure(doing: str, where: str, info: EngineInfo, log: BuildLog) -> EnvkitError:
    tail, details = "\n".join(log.tail()), log.details()
    message = next((line for line in reversed(log.tail()) if line.strip()), "no output")
    if disk_full(tail):
        return translate("no space left on device", f"{doing}, {where[:160]}", info, details)
    if _LOST.search(tail):
        return engine_lost(doing, info, details)
    code = _EXIT.search(message)
    if code is None:
        # Only an unreachable registry is reported in the last line; network errors of a step are not.
        return translate(message if registry_away(message) else message.removeprefix("ERROR: "), doing, info, details)
    return EngineError(
        f"{doing} failed at {where[:160]}: exit code {code[1]}",
        hint=f"less {log.path}" if log.path else None,
        details=details,
    )
