"""What runners take and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from envkit.ground.progress import Reporter

DATA = "/run/envkit-data"
"""Where a run finds the user's folder of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The cage of one run. Limits hold inside the container and outside it."""

    timeout_s: float = 300.0
    memory_mb: int | None = None  # MiB of all processes, /tmp and /dev/shm together; None: a share of the machine's
    tmp_mb: int | None = None  # MiB of /tmp; None: a share of the memory
    cpus: float | None = None
    pids: int = 4096
    shm_mb: int = 1024
    output_bytes: int = 32 << 20
    user: str | None = None  # 'uid:gid'; None = the image's own user
    # A folder of this machine that the run finds at `DATA`, read-only; absolute. It is all that is ever mounted.
    data: Path | None = None
    # The last line of stdout, if it is known: a run that wrote it is complete, even if its container cannot end.
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
    output_cut: bool = False  # more came than `RunLimits.output_bytes`: the rest is lost and the run was ended


GUARANTEES: Mapping[str, str] = {
    "network": "shares the network of its environment",
    "processes": "shares process IDs: it sees the processes of its environment",
    "shared-memory": "shares /dev/shm of its environment",
    "read-only-root": "no read-only root: it can change files that belong to its user",
    "memory-limit": "no memory limit for the whole run, only for each process",
}
"""What a runner may be unable to give: a name, and what is so instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """How a runner separates what it runs from the machine. `missing` names the guarantees that it cannot give."""

    level: Literal["strong", "weak", "none"]
    missing: tuple[str, ...] = ()  # of GUARANTEES

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {"level": self.level, "missing": list(self.missing)}


STRONG = Isolation(level="strong")


class Runner(Protocol):
    """One way to run a command inside an image, with no power: network off, capabilities dropped, read-only root."""

    name: str

    @property
    def isolation(self) -> Isolation:
        """How it separates what it runs from the machine, as far as it can here."""

    def probe(self) -> str | None:
        """None when it works here, else why not, within ten seconds; never raises."""

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
        """Run `argv` in `image` with `files` (absolute path -> content) copied in by archive.

        `entrypoint` runs it through the image's own entry point, else that is bypassed. `gpus` is None, `all`, or
        device numbers and UUIDs joined by commas. /tmp is the one writable place besides the files' folders.
        `limits.data` is found at `DATA`; the host runner replaces that path in `argv` by the folder's own.

        Raises:
            EngineError: the image does not exist, or the container could not be made or started.
            EnvironmentProblem: the engine does not answer, or has no GPU support.
            TimeLimitError: `limits.timeout_s` was reached and the output is not complete (`limits.last_line`); the
                container is gone.
        """

    def inspect(self, image: str) -> Mapping[str, Any]:
        """An image as far as it can be told without running it; never pulls.

        Keys: id, tags, labels (mapping), env (mapping), user, entrypoint, cmd, workdir, ports (`8888/tcp` each),
        architecture, os, size (bytes), layers (digests of their tars, lowest first).

        Raises:
            EngineError: the image does not exist.
        """


@runtime_checkable
class Storage(Protocol):
    """An engine that keeps images, and can write one to a file."""

    name: str

    def inspect(self, image: str) -> Mapping[str, Any]:
        """As `Runner.inspect`."""

    def save(self, image: str, path: Path) -> None:
        """Write an image to a new file as `docker save` does: its configuration as it is, its layers as tars.

        Raises:
            EngineError: the image does not exist.
            EnvironmentProblem: the engine does not answer, or a disk is full.
        """
