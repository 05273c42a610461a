"""Code shared by all runners: default limits, files as an archive, the time limit inside, output and exit codes."""

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
from envkit.run.model import RunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envkit.run.model import RunLimits

GRACE_S = 10.0  # added to the limit inside the container for the limit outside
END_S = 15.0  # how long a run may take to exit after its output is complete
# Default limits of a run: the machine has to stay usable whatever the image does.
MEMORY_SHARE = 0.75  # of the machine's memory, or of this process's own limit
TMP_SHARE = 0.25  # of the run's memory
# Pressure stall information. Engines mask or protect other kernel files in /proc, but leave this one writable.
PRESSURE = "/proc/pressure"
_KILL_AFTER_S = 5  # between SIGTERM and SIGKILL
_SHELL = "/bin/sh"
# coreutils and busybox accept the same arguments. In an image without `timeout`, only the limit outside applies. The
# shell stays as process 1, which cannot be killed from inside: busybox's `timeout` replaces itself with the command.
_TIMED = (
    "limit=$1; shift; if command -v timeout >/dev/null 2>&1; "
    f'then timeout -k {_KILL_AFTER_S} "$limit" "$@"; exit $?; fi; "$@"; exit $?'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run, its image and its limits."""

    image: str  # its ID
    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    gpus: str | None
    limits: RunLimits
    entrypoint: bool


def timed(argv: Sequence[str], limits: RunLimits) -> tuple[str, ...]:
    """Return `argv` with a time limit that is enforced inside the container, even if envkit or its machine is gone."""
    return (_SHELL, "-c", _TIMED, "envkit", f"{limits.timeout_s:g}", *argv)


def bounded(limits: RunLimits, memory: int | None) -> RunLimits:
    """Return the limits with defaults filled in; `memory` is the memory of the container's machine in bytes."""
    memory_mb = limits.memory_mb
    if memory_mb is None and memory is not None:
        memory_mb = max(1, int(memory * MEMORY_SHARE) >> 20)
    tmp_mb = limits.tmp_mb
    if tmp_mb is None and memory_mb is not None:
        tmp_mb = max(1, int(memory_mb * TMP_SHARE))
    return replace(limits, memory_mb=memory_mb, tmp_mb=tmp_mb)


def memory_here() -> int | None:
    """Return the memory available to processes on this machine, in bytes: the machine's, or this process's limit."""
    sizes = [size for size in (host.memory_total(), host.memory_limit()) if size is not None]
    return min(sizes, default=None)


def tmpfs(limits: RunLimits) -> str:
    """Return the mount options of /tmp. It is `exec` because compiled kernels are loaded from it."""
    size = "" if limits.tmp_mb is None else f",size={limits.tmp_mb}m"
    return f"rw,exec,nosuid,nodev,mode=1777{size}"


def run_timed(command: Command, once: Callable[[Command], RunResult]) -> RunResult:
    """Run a command with a time limit inside the container as well; without a shell in the image, only outside."""
    try:
        return once(replace(command, argv=timed(command.argv, command.limits)))
    except EngineError as error:
        if not without_shell(error.message):
            raise
        return once(command)


def run_first(command: Command, once: Callable[[Sequence[str], bool], RunResult | None]) -> RunResult:
    """Run a command like `run_timed`, for runners that start the first program themselves.

    Args:
        command: what to run.
        once: runs an argument list, or returns None if the image does not have its program. The flag is True if the
            program is the shell that enforces the time limit.

    Raises:
        EngineError: the image does not have the command's own program.
    """
    result = once(timed(command.argv, command.limits), True)
    if result is None:  # no shell in the image: only the limit outside applies
        result = once(command.argv, False)
    if result is None:
        raise EngineError(
            f"the run in {command.image[:19]}: {command.argv[0]!r:.200} cannot be run in it", hint="check its path"
        )
    return result


def described(tree: Mapping[str, Any], *, image: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what `Runner.inspect` returns, from the JSON of an image, which Docker and Podman share."""
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
    """Return the topmost folders of the files. Each becomes a volume, because the root is read-only.

    Raises:
        UsageError: a path is not absolute, not plain, or directly below /.
    """
    parents: set[str] = set()
    for name in files:
        path = PurePosixPath(name)
        if not path.is_absolute() or ".." in path.parts or str(path) != name or str(path.parent) == "/":
            raise UsageError(f"{name!r} is not a valid path for a file in a container", hint="/run/envkit/NAME")
        parents.add(str(path.parent))
    # One volume is enough for a folder and those below it: `archive` writes all of them.
    return tuple(sorted(parent for parent in parents if not any(parent.startswith(f"{other}/") for other in parents)))


def archive(files: Mapping[str, bytes], folder: str) -> bytes:
    """Return a tar of the files below `folder`, owned by root and readable by all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        written: set[PurePosixPath] = set()
        for name, content in sorted(files.items()):
            if not name.startswith(f"{folder}/"):
                continue
            path = PurePosixPath(name).relative_to(folder)
            for parent in reversed(path.parents[:-1]):
                if parent not in written:
                    written.add(parent)
                    entry = tarfile.TarInfo(str(parent))
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(entry)
            entry = tarfile.TarInfo(str(path))
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def labels() -> dict[str, str]:
    """Return the labels of a container, which name this process so that a later run can remove leftovers."""
    return identity.current().labels()


def container_name() -> str:
    """Return a new name for a container of this run."""
    return f"envkit-{identity.current().id}-{secrets.token_hex(4)}"


def without_shell(message: str) -> bool:
    """Return whether an engine's error message means that the image has no shell."""
    # runc: exec: "/bin/sh": stat /bin/sh: no such file or directory; crun: executable file `/bin/sh` not found in $PATH
    return _SHELL in message and any(text in message for text in ("no such file", "executable file", "not found"))


def over_time(limits: RunLimits, image: str) -> TimeLimitError:
    """Return the error for a run that reached its time limit."""
    return TimeLimitError(
        f"the run in {image} reached its time limit of {limits.timeout_s:g} s and was killed",
        hint=RAISE_TIMEOUT,
    )


def exit_code(
    code: int, duration_s: float, limits: RunLimits, output: Output, *, over: bool = False, image: str
) -> int:
    """Return the exit code of a run, or 0 if its output was complete when the time limit ended it.

    `over` is True if the limit outside the container ended it.

    Raises:
        TimeLimitError: it reached its limit, and the output is not complete.
    """
    # The limit inside gives 124, or 137 if the command ignored SIGTERM.
    # With busybox it is the code of the command itself: 143 after SIGTERM.
    if not over and not (code in (124, 137, 143) and duration_s >= limits.timeout_s):
        return code
    if output.complete:
        return 0
    raise over_time(limits, image)


class Output:
    """The two output streams of a run, each with the same limit. `complete`: stdout ends with `limits.last_line`."""

    def __init__(self, limits: RunLimits) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.cut = self.complete = False
        self._limit = limits.output_bytes
        self._last_line = None if limits.last_line is None else f"{limits.last_line}\n".encode()

    def take(self, *, error: bool, piece: bytes) -> bool:
        """Append bytes to a stream; return False once the limit is exceeded and output was dropped."""
        target = self.stderr if error else self.stdout
        room = self._limit - len(target)
        target += piece[:room]
        self.cut = self.cut or len(piece) > room
        if self._last_line is not None and not error and target.endswith(self._last_line):
            self.complete = True
        return not self.cut

    def result(self, code: int, duration_s: float, *, image: str, oom_killed: bool = False) -> RunResult:
        """Return the result of the run that wrote this output; `image` is the image's ID."""
        return RunResult(
            exit_code=code,
            stdout=bytes(self.stdout),
            stderr=bytes(self.stderr),
            duration_s=duration_s,
            oom_killed=oom_killed,
            image_id=image,
            output_cut=self.cut,
        )
