"""What every container runner has in common: files as an archive, the time limit inside, and how an end is read."""

from __future__ import annotations

import io
import secrets
import tarfile
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from envkit.ground import host, identity
from envkit.ground.errors import RAISE_TIMEOUT, EngineError, TimeLimitError, UsageError
from envkit.image.document import exposed_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envkit.run.model import RunLimits, RunResult

GRACE_S = 10.0  # how much longer than the limit inside the limit outside is
END_S = 15.0  # how long a run may take to end after its output is complete
# Default limits of a run: the machine has to stay usable whatever the image does.
MEMORY_SHARE = 0.75  # of the machine's memory, or of the limit that this process has itself
TMP_SHARE = 0.25  # of the run's memory
# The kernel's interface for pressure stall information: engines mask or protect the others, but anyone may write here.
PRESSURE = "/proc/pressure"
_KILL_AFTER_S = 5  # between SIGTERM and SIGKILL
_SHELL = "/bin/sh"
# coreutils and busybox take these arguments alike; an image without `timeout` has the limit outside alone. The shell
# stays: busybox's `timeout` replaces itself by the command, and process 1 cannot be killed from inside.
_TIMED = (
    "limit=$1; shift; if command -v timeout >/dev/null 2>&1; "
    f'then timeout -k {_KILL_AFTER_S} "$limit" "$@"; exit $?; fi; "$@"; exit $?'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run, where, and within which limits."""

    image: str  # by id
    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    gpus: str | None
    limits: RunLimits
    entrypoint: bool


def timed(argv: Sequence[str], limits: RunLimits) -> tuple[str, ...]:
    """`argv` under a time limit that the container enforces itself, also when this machine is gone."""
    return (_SHELL, "-c", _TIMED, "envkit", f"{limits.timeout_s:g}", *argv)


def bounded(limits: RunLimits, memory: int | None) -> RunLimits:
    """Return the limits with their defaults; `memory` is that of the machine that runs the container, in bytes."""
    most = limits.memory_mb
    if most is None and memory is not None:
        most = max(1, int(memory * MEMORY_SHARE) >> 20)
    tmp = limits.tmp_mb
    if tmp is None and most is not None:
        tmp = max(1, int(most * TMP_SHARE))
    return replace(limits, memory_mb=most, tmp_mb=tmp)


def memory_here() -> int | None:
    """Return the memory that a run on this machine shares with everything else, in bytes."""
    sizes = [size for size in (host.memory_total(), host.memory_limit()) if size is not None]
    return min(sizes, default=None)


def tmpfs(limits: RunLimits) -> str:
    """Return the mount options of /tmp; `exec` because compiled kernels are loaded from there."""
    size = "" if limits.tmp_mb is None else f",size={limits.tmp_mb}m"
    return f"rw,exec,nosuid,nodev,mode=1777{size}"


def run_timed(command: Command, once: Callable[[Command], RunResult]) -> RunResult:
    """Run a command with the time limit inside the container too.

    In an image without a shell, the limit outside has to do.
    """
    try:
        return once(replace(command, argv=timed(command.argv, command.limits)))
    except EngineError as error:
        if not without_shell(error.message):
            raise
        return once(command)


def run_first(command: Command, once: Callable[[Sequence[str], bool], RunResult | None]) -> RunResult:
    """Run a command with the time limit inside the container too, where a runner starts the first program itself.

    Args:
        command: what is run.
        once: runs the words that it gets; None means that the image lacks the first of them. The flag says whether that
            is the shell of the time limit, and so no error yet.

    Raises:
        EngineError: the image does not have the command's own program.
    """
    result = once(timed(command.argv, command.limits), True)
    if result is None:  # No shell in the image: the time limit outside has to do.
        result = once(command.argv, False)
    if result is None:
        raise EngineError(
            f"the run in {command.image[:19]}: {command.argv[0]!r:.200} cannot be run in it", hint="check its path"
        )
    return result


def described(tree: Mapping[str, Any], *, image: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """What `Runner.inspect` gives, from the JSON that Docker and Podman print alike."""
    config = tree.get("Config") or {}
    return {
        "id": image,
        "tags": tuple(tree.get("RepoTags") or ()),
        "labels": labels,
        "env": dict(item.partition("=")[::2] for item in config.get("Env") or ()),
        "user": config.get("User") or "",
        "entrypoint": tuple(config.get("Entrypoint") or ()),
        "cmd": tuple(config.get("Cmd") or ()),
        "workdir": config.get("WorkingDir") or "",
        "ports": exposed_ports(config),
        "architecture": tree.get("Architecture") or "",
        "os": tree.get("Os") or "",
        "size": tree.get("Size"),
        "layers": tuple((tree.get("RootFS") or {}).get("Layers") or ()),
    }


def folders(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The folders that hold the files: each becomes a volume, because the root is read-only.

    Raises:
        UsageError: a path is not absolute, not plain, or directly below /.
    """
    parents: set[str] = set()
    for name in files:
        path = PurePosixPath(name)
        if not path.is_absolute() or ".." in path.parts or str(path) != name or str(path.parent) == "/":
            raise UsageError(f"{name!r} is not a valid path for a file in a container", hint="/run/envkit/NAME")
        parents.add(str(path.parent))
    return tuple(sorted(parent for parent in parents if not any(parent.startswith(f"{other}/") for other in parents)))


def archive(files: Mapping[str, bytes], folder: str) -> bytes:
    """A tar of the files below `folder`, owned by root, readable by all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made: set[PurePosixPath] = set()
        for name, content in sorted(files.items()):
            if not name.startswith(f"{folder}/"):
                continue
            path = PurePosixPath(name).relative_to(folder)
            for parent in reversed(path.parents[:-1]):
                if parent not in made:
                    made.add(parent)
                    entry = tarfile.TarInfo(str(parent))
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(entry)
            entry = tarfile.TarInfo(str(path))
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def labels() -> dict[str, str]:
    """Labels of a container: they say whose it is, so that a later run can remove it."""
    return identity.current().labels()


def container_name() -> str:
    """A name for one container of this run."""
    return f"envkit-{identity.current().id}-{secrets.token_hex(4)}"


def without_shell(said: str) -> bool:
    """Whether an engine's refusal to start a container says that the image has no shell."""
    return _SHELL in said and ("no such file" in said or "executable file" in said or "not found" in said)


def over_time(limits: RunLimits, image: str) -> TimeLimitError:
    """The error of a run that reached its limit."""
    return TimeLimitError(
        f"the run in {image} reached its time limit of {limits.timeout_s:g} s and was killed",
        hint=RAISE_TIMEOUT,
    )


def exit_code(
    code: int, duration_s: float, limits: RunLimits, output: Output, *, over: bool = False, image: str
) -> int:
    """Return the exit code of a run that took so long; 0 where it had to be ended after its output was complete.

    `over`: it was ended from outside.

    Raises:
        TimeLimitError: it reached its limit, and the output is not complete.
    """
    # The limit inside gives 124, or 137 where SIGTERM was ignored.
    if not over and not (code in (124, 137, 143) and duration_s >= limits.timeout_s):
        return code
    if output.complete:
        return 0
    raise over_time(limits, image)


class Output:
    """Two streams of bytes with one limit on each. `complete`: stdout has the line that ends it."""

    def __init__(self, limits: RunLimits) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.cut = self.complete = False
        self._limit = limits.output_bytes
        self._last_line = None if limits.last_line is None else f"{limits.last_line}\n".encode()

    def take(self, *, error: bool, piece: bytes) -> bool:
        """Keep a piece; False when the limit is reached and nothing more is taken."""
        target = self.stderr if error else self.stdout
        room = self._limit - len(target)
        target += piece[:room]
        self.cut = self.cut or len(piece) > room
        if self._last_line is not None and not error and target.endswith(self._last_line):
            self.complete = True
        return not self.cut
