"""The real command line, each call in a process of its own that starts with everything imported.

`CommandLine` starts `python -m tests.support.forked`, which forks for every call. So a start costs milliseconds, and
time and memory are those of the one call. What an interpreter reads when it starts, as its locale, is the server's.
"""

import importlib
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

import envkit as package
from envkit import api
from envkit.__main__ import main as envkit
from envkit.ground.errors import EnvkitError

WALL = 60  # seconds, after which a call is ended: the machine may be busy
API = "--api"  # in place of a command: a function of envkit.api, and its arguments as JSON


class CommandLine:
    """The process that forks; use it as a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=WALL)

    def run(
        self,
        argv: Sequence[str],
        folder: Path,
        output: Path,
        env: Mapping[str, str],
        *,
        wall: int = WALL,
        cpu: int | None = None,
        umask: int = -1,
    ) -> dict[str, Any]:
        """Run `envkit ARGV` in a folder and write stdout and stderr into `output`.

        Returns `exit`, `cpu` (seconds of processor time, of its own children too), `wall` (seconds) and `memory` (bytes
        at most). A call that takes more than `wall` seconds, or `cpu` seconds of processor time, is killed.
        """
        task = {"argv": list(argv), "env": dict(env), "folder": str(folder), "output": str(output)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**task, "wall": wall, "cpu": cpu, "umask": umask}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _import_all() -> None:
    for module in pkgutil.walk_packages(package.__path__, "envkit."):
        # Those of other interpreters: the payload's, and what `envkit watch` puts on the path of a training.
        if not module.name.startswith(("envkit.smoke", "envkit.watch.injected.")) and not module.name.endswith(
            "__main__"
        ):
            importlib.import_module(module.name)


def _become(task: dict[str, Any]) -> None:
    """In the child: become the command line."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(task["output"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setpgid(0, 0)
    if task["cpu"] is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (task["cpu"], task["cpu"] + 5))
    if task["umask"] >= 0:
        os.umask(task["umask"])
    os.environ.clear()
    os.environ.update(task["env"])
    sys.dont_write_bytecode = True  # what Python itself writes beside a plug-in is not the call's
    os.chdir(task["folder"])
    sys.path[:0] = filter(None, task["env"].get("PYTHONPATH", "").split(":"))
    if task["argv"][0] == API:
        os._exit(_call(task["argv"][1], json.loads(task["argv"][2])))
    sys.argv = ["envkit", *task["argv"]]
    try:
        envkit()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:  # noqa: BLE001 - the process ends here, as Python's own start would end it
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _call(name: str, arguments: dict[str, Any]) -> int:
    """Call a function of the API; say its result, or its error as the command line does."""
    try:
        print(getattr(api, name)(**arguments))
    except EnvkitError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except BaseException:  # noqa: BLE001 - as in _become
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Answer one line of JSON with another until the input ends."""
    _import_all()
    for line in sys.stdin:
        task = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(task)

        def end(_number: int, _frame: FrameType | None, child: int = child) -> None:
            os.killpg(child, signal.SIGKILL)

        signal.signal(signal.SIGALRM, end)
        signal.alarm(task["wall"])
        _, status, used = os.wait4(child, 0)
        signal.alarm(0)
        answer = {
            "exit": os.waitstatus_to_exitcode(status),
            "cpu": used.ru_utime + used.ru_stime,
            "wall": time.monotonic() - began,
            "memory": used.ru_maxrss * 1024,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
