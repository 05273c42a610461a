"""Types of runners: their protocols, limits and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from envkit.ground.progress import Reporter
from envkit.ground.records import Row
from envkit.image.name import ImageName

DATA = "/run/envkit-data"
"""The path of the user's data folder inside a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits and mounts of one run. The time limit holds inside the container and outside it."""

    timeout_s: float = 300.0
    memory_mb: int | None = None  # MiB for all processes, /tmp and /dev/shm together; None: a share of the machine's
    tmp_mb: int | None = None  # MiB for /tmp; None: a share of the run's memory
    cpus: float | None = None
    pids: int = 4096
    shm_mb: int = 1024
    output_bytes: int = 32 << 20
    user: str | None = None  # 'uid:gid'; None = the image's own user
    # Absolute path of a folder that is mounted read-only at `DATA`. Nothing else of this machine is mounted.
    data: Path | None = None
    # The last line of stdout, if known. A run that has written it is complete, even if its container hangs.
    last_line: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How one run ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    oom_killed: bool
    image_id: str
    output_cut: bool = False  # the output exceeded `RunLimits.output_bytes`: the rest is lost and the run was killed


GUARANTEES: Mapping[str, str] = {
    "network": "shares the network of its environment",
    "processes": "shares process IDs: it sees the processes of its environment",
    "shared-memory": "shares /dev/shm of its environment",
    "read-only-root": "no read-only root: it can change files that belong to its user",
    "memory-limit": "no memory limit for the whole run, only for each process",
}
"""Guarantees that a runner may be unable to give: name -> what happens without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation(Row):
    """How well a runner isolates a run from the machine. `missing` names the guarantees that it cannot give."""

    level: Literal["strong", "weak", "none"]
    missing: tuple[str, ...] = ()  # of GUARANTEES


STRONG = Isolation(level="strong")


class Runner(Protocol):
    """Runs commands in images without privileges: network off, capabilities dropped, read-only root."""

    name: str

    @property
    def isolation(self) -> Isolation:
        """The isolation that this runner provides on this machine."""

    def probe(self) -> str | None:
        """Return None if it works here, else the reason, within ten seconds. Never raises."""

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
        """Run `argv` in `image` with `files` (absolute path -> content) copied in by archive.

        With `entrypoint` it runs through the image's entry point, which is bypassed otherwise. `gpus` is None, `all`,
        or device numbers and UUIDs joined by commas. Only /tmp and the files' folders may be writable. `limits.data` is
        mounted at `DATA`; the host runner replaces that path in `argv` with the folder's own.

        Raises:
            EngineError: the image does not exist, or the container could not be created or started.
            EnvironmentProblem: the engine does not answer, or has no GPU support.
            TimeLimitError: `limits.timeout_s` was reached and the output is not complete (`limits.last_line`); the
                container is gone.
        """

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """Return what is known about an image without running it. Never pulls.

        Keys: id, tags, labels (mapping), env (mapping), user, entrypoint, cmd, workdir, ports (`8888/tcp` each),
        architecture, os, size (bytes), layers (diff IDs, lowest first).

        Raises:
            EngineError: the image does not exist.
        """


@runtime_checkable
class Storage(Protocol):
    """An engine that stores images and can save one to a file."""

    name: str

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """See `Runner.inspect`."""

    def save(self, image: ImageName, path: Path) -> None:
        """Write an image to a new file like `docker save`: the unchanged configuration, and the layers as tars.

        Raises:
            EngineError: the image does not exist.
            EnvironmentProblem: the engine does not answer, or a disk is full.
        """
