"""Build with Podman through its client, from Dockerfiles of the classic syntax."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.engines import journal
from envkit.engines.failures import EngineInfo, disk_full, translate
from envkit.engines.model import Job, LocalImage, Probe
from envkit.ground import identity
from envkit.ground.addresses import is_loopback
from envkit.ground.errors import RAISE_TIMEOUT, EngineError, EnvkitError, TimeLimitError, UsageError
from envkit.ground.process import ask, follow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter

_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP (\d+)/(\d+): ")  # [2/2] STEP 3/9: RUN pip install torch
_EXIT = re.compile(r"exit status (\d+)|exit code (\d+)")
# Only with --log-level=debug does buildah log the IDs of working containers, which a killed build leaves.
_DEBUG = re.compile(r'time="[^"]*" level=(?:debug|info|trace) msg=')
_CONTAINER = re.compile(r'level=debug msg="Container ID: ([0-9a-f]{64})"')
_QUERY_S = 30.0  # to read its storage
_PULL_S = 1800.0  # gigabytes from a registry, or into the storage


class PodmanEngine:
    """This user's Podman."""

    name = "podman"
    syntax = "classic"

    def __init__(self, client: str = "podman") -> None:
        self._client = client

    def probe(self) -> Probe:
        """Return whether Podman works here; see `Engine`."""
        hint = "apt-get install podman"
        if shutil.which(self._client) is None:
            return Probe(name=self.name, available=False, detail="podman is not installed", hint=hint)
        try:
            # `Engine.probe` has ten seconds in all.
            tree = json.loads(self._ask("info", "--format", "json", patience_s=9.0))
            version, store = tree["version"]["Version"], tree["store"]["graphRoot"]
        except EnvkitError as error:
            return Probe(name=self.name, available=False, detail=error.message, hint="podman info")
        except (ValueError, KeyError, TypeError) as error:
            return Probe(name=self.name, available=False, detail=f"podman info: {error}", hint="podman info")
        return Probe(name=self.name, available=True, detail=f"podman {version}, storage in {store}")

    def info(self) -> EngineInfo:
        """Return the engine's name and storage folder."""
        try:
            return EngineInfo(engine=self.name, storage=self._ask("info", "--format", "{{.Store.GraphRoot}}").strip())
        except EnvkitError:
            return EngineInfo(engine=self.name)

    def make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter) -> str:
        """Build with Podman; see `Engine`."""
        if job.secrets:
            raise UsageError("envkit supports build secrets only with BuildKit", hint="--engine buildkit")
        doing = f"the build of {job.name}"
        where = ["its start"]
        with (
            journal.Journal(job.state, self.name) as notes,
            tempfile.TemporaryDirectory(prefix="envkit-") as folder,
            tempfile.TemporaryFile() as stdin,
        ):
            stdin.write(context)
            stdin.seek(0)
            iidfile = Path(folder) / "iid"
            notes.folder(Path(folder))

            def on_line(line: str) -> None:
                if _DEBUG.match(line):
                    if container := _CONTAINER.search(line):
                        notes.container(container[1])
                    return
                if step := _STEP.match(line):
                    where[0] = line
                    reporter.advance(int(step[1]) - 1, int(step[2]))
                if line.strip():
                    log.write(line)

            image = ""
            try:
                ended = follow(
                    [self._client, "--log-level=debug", *_arguments(job, iidfile)],
                    on_line,
                    stdin=stdin,
                    limit_s=job.timeout_s,
                    on_start=notes.process,
                )
                image = iidfile.read_text().strip() if iidfile.exists() and not ended.code else ""
            finally:
                if not image:
                    self._remove(notes.containers)
        if ended.timed_out:
            raise TimeLimitError(
                f"{doing} reached its time limit of {job.timeout_s:g} s at {where[0][:160]}",
                hint=RAISE_TIMEOUT,
                details=log.details(),
            )
        if not image:
            raise self._failure(doing, where[0], log)
        return image if image.startswith("sha256:") else f"sha256:{image}"

    def digest(self, reference: str) -> str:
        """Pull a reference and return its digest, which Podman cannot look up without pulling; see `Engine`."""
        # Docker by itself allows plain HTTP for registries on this machine, Podman does not.
        insecure = ["--tls-verify=false"] if is_loopback(reference.partition("/")[0]) else []
        self._ask("pull", "--quiet", *insecure, reference, patience_s=_PULL_S, doing=f"looking up {reference}")
        digest = self._ask("image", "inspect", "--format", "{{.Digest}}", reference).strip()
        if not digest.startswith("sha256:"):
            raise EngineError(
                f"looking up {reference}: podman reports no digest", hint=f"podman image inspect {reference}"
            )
        return digest

    def local(self, reference: str) -> LocalImage | None:
        """Return an image in Podman's storage; see `Engine`."""
        try:
            tree: Any = json.loads(self._ask("image", "inspect", reference))[0]
        # Any other failure means that the storage cannot be read, not that the image is missing.
        except EngineError as error:
            if re.search(r"no such image|image not known|failed to find image", error.message, re.IGNORECASE):
                return None
            raise
        return LocalImage(
            id=f"sha256:{tree['Id'].removeprefix('sha256:')}",
            digests=tuple(tree.get("RepoDigests") or ()),
            size=tree.get("Size"),
            labels=tree.get("Labels") or {},
            created=tree.get("Created", ""),
        )

    def import_base(self, tar: Path, reference: str, env: Mapping[str, str]) -> LocalImage:
        """Import a root file system; see `Engine`."""
        changes = [f"--change=ENV {key}={value}" for key, value in env.items()] + ['--change=CMD ["bash"]']
        doing = f"importing {reference}"
        self._ask("import", "--quiet", *changes, str(tar), reference, patience_s=_PULL_S, doing=doing)
        image = self.local(reference)
        if image is None:
            raise EngineError(f"{doing}: podman reported success, but the image is missing", hint="podman images")
        return image

    def tag(self, image: str, reference: str) -> None:
        """Name an image; see `Engine`."""
        self._ask("tag", image.removeprefix("sha256:"), reference, doing=f"tagging {reference}")

    def has_bridge(self) -> bool:
        """Return True: Podman creates the network of a build step itself."""
        return True

    def sweep(self, state: Path) -> int:
        """Remove what killed runs left; see `Engine`."""
        rows: Any = json.loads(
            self._ask("ps", "--all", "--format", "json", "--filter", f"label={identity.PREFIX}") or "[]"
        )
        dead = [row["Id"] for row in rows or () if identity.abandoned(row.get("Labels") or {})]
        for ident in dead:
            self._ask("rm", "--force", "--volumes", "--time", "0", ident)
        removed = len(dead)
        for note in journal.abandoned(state, self.name):
            journal.end_processes(note)
            removed += self._remove(note.containers)
            journal.forget(note)
        return removed

    def _remove(self, containers: Sequence[str]) -> int:
        """Remove the build's working containers among these and return how many."""
        if not containers:
            return 0
        try:
            rows: Any = json.loads(self._ask("ps", "--all", "--external", "--format", "json") or "[]")
            # Only buildah's working containers, which `--external` adds: a build step could print such a line with the
            # ID of another container.
            working = {row["Id"] for row in rows or () if row.get("State") in ("storage", "Storage", "unknown")}
            removable = [ident for ident in containers if ident in working]
            for ident in removable:
                self._ask("rm", "--force", ident)
        except EnvkitError:
            return 0  # must not hide the build's error; the next run tries again
        return len(removable)

    def _ask(self, *arguments: str, patience_s: float = _QUERY_S, doing: str | None = None) -> str:
        """Run Podman's client and return its output."""
        answer = ask([self._client, *arguments], patience_s=patience_s)
        if answer.code:
            message = answer.err.strip() or f"exit code {answer.code}"
            raise translate(message, doing or f"podman {arguments[0]}", EngineInfo(engine="podman"))
        return answer.out

    def _failure(self, doing: str, where: str, log: BuildLog) -> EnvkitError:
        info, details = self.info(), log.details()
        tail = log.tail()
        message = next(
            (line for line in reversed(tail) if line.startswith(("Error:", "error "))), tail[-1] if tail else ""
        )
        if disk_full("\n".join(tail)):
            return translate("no space left on device", f"{doing}, {where[:160]}", info, details)
        code = _EXIT.search(message)
        if code is None:
            return translate(message or "podman ended without any output", doing, info, details)
        return EngineError(
            f"{doing} failed at {where[:160]}: exit code {code[1] or code[2]}",
            hint=f"less {log.path}" if log.path else None,
            details=details,
        )


def _arguments(job: Job, iidfile: Path) -> list[str]:
    argv = ["build", "--format", "docker", "--iidfile", str(iidfile), "--pull=missing", "--force-rm"]
    argv += ["--no-cache"] if job.no_cache else []
    argv += ["--network", job.network] if job.network else []
    for key, value in job.labels.items():
        argv += ["--label", f"{key}={value}"]
    return [*argv, "-"]
