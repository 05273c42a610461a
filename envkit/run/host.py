"""Run commands on this machine with its own Python, in an empty folder and without isolation."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import paths
from envkit.ground.errors import EngineError
from envkit.ground.process import child, kill_all
from envkit.run import containers
from envkit.run.model import DATA, GUARANTEES, Isolation, RunLimits, RunResult
from envkit.run.pipes import collect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName

_PYTHONS = ("python", "python3")


class HostRunner:
    """Runs commands on this machine. `image` is a Python interpreter, and `gpus` sets CUDA_VISIBLE_DEVICES.

    Network, files and devices are the user's. The time limit holds inside and outside, the memory limit applies to each
    process's private writable memory, and the folder is removed with everything in it.
    """

    name = "host"
    isolation = Isolation(level="none", missing=tuple(GUARANTEES))

    def probe(self) -> str | None:
        """Return None: the host is always available."""
        return None

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """Describe the interpreter as an image; see `Runner`. It has no size, tags or labels."""
        python = _interpreter(image)
        return {
            "id": f"host:{python}",
            "tags": (),
            "labels": {},
            "env": dict(os.environ),
            "user": f"{os.geteuid()}:{os.getegid()}",
            "entrypoint": (),
            "cmd": (python,),
            "workdir": "",
            "architecture": platform.machine(),
            "os": platform.system().lower(),
            "size": None,
        }

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
        """Run a command with its files in a temporary folder; see `Runner`."""
        del entrypoint  # the host has none
        python = _interpreter(image)
        containers.folders(files)  # the same paths are refused on every runner
        with paths.scratch() as root:
            for name, content in files.items():
                target = root / name.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            (root / "tmp").mkdir(exist_ok=True)
            moved = [_moved(item, files, root) if item != DATA else str(limits.data) for item in argv]
            command = [python if moved[0] in _PYTHONS else moved[0], *moved[1:]]
            env = dict(os.environ) | {"TMPDIR": str(root / "tmp")}
            if gpus not in (None, "all"):
                env["CUDA_VISIBLE_DEVICES"] = str(gpus)
            return _run(command, env, limits, reporter, python)


def _run(command: list[str], env: Mapping[str, str], limits: RunLimits, reporter: Reporter, python: str) -> RunResult:
    output = containers.Output(limits)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(
                child(
                    _limited(containers.timed(command, limits), limits),
                    end=lambda process: kill_all(process.pid),
                    cwd=env["TMPDIR"],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise EngineError(
                f"{command[0]} cannot be run: {error.strerror or error}", hint="--runner docker"
            ) from error
        deadline = began + limits.timeout_s + containers.GRACE_S
        over = collect(process, output, reporter, deadline=deadline, kill=lambda: kill_all(process.pid))
        kill_all(process.pid)  # processes that the command left in its session
    duration = time.monotonic() - began
    # A shell reports signal n as exit code 128 + n; Popen reports its own child's as -n.
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    code = containers.exit_code(code, duration, limits, output, over=over, image=python)
    return output.result(code, duration, image=f"host:{python}")


def _limited(argv: Sequence[str], limits: RunLimits) -> list[str]:
    """Return `argv` with a limit on private writable memory, not on address space, of which CUDA reserves much."""
    if limits.memory_mb is None:
        return list(argv)
    # RLIMIT_DATA counts private writable mappings as well as the heap (since Linux 4.7, getrlimit(2)).
    # `ulimit -d` takes KiB.
    return ["/bin/sh", "-c", 'ulimit -d "$1"; shift; exec "$@"', "envkit", str(limits.memory_mb << 10), *argv]


def _interpreter(image: ImageName) -> str:
    """Return the path of the Python that `image` names (a path or a command); `host` or '' is the running one."""
    if image.typed in ("", "host"):
        return sys.executable
    program = shutil.which(image.typed.removeprefix("host:"))
    if program is None:
        raise EngineError(
            f"{image.typed!r:.200} is not a Python on this machine", hint="envkit verify --runner host /usr/bin/python3"
        )
    return os.path.abspath(program)  # noqa: PTH100 - links stay: Python finds its virtual environment by the link


def _moved(item: str, files: Mapping[str, bytes], root: Path) -> str:
    """Return an argument in which the paths of files are replaced by their paths on this machine."""
    for name in sorted(files, key=len, reverse=True):  # longest first: one path may be the start of another
        item = item.replace(name, f"{root}{name}")
    return item
