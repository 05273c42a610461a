"""Render a user's template in a separate process with limits on memory, time and files.

Jinja's sandbox keeps a template away from Python's internals, but does not stop `'x' * 10**10` or nested loops.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envkit.ground.errors import UsageError

MEMORY = 512 << 20  # bytes of address space
SECONDS = 4  # of processor time; the wall clock limit is longer, for busy machines
_WALL = 10  # seconds


def render_confined(name: str, values: dict[str, Any], folders: Sequence[Path]) -> str:
    """Render an untrusted template; otherwise like `envkit.render.engine.render_template`.

    Raises:
        UsageError: as there, or the template exceeds the limit on memory or time.
    """
    task = json.dumps({"name": name, "values": values, "folders": [str(folder.resolve()) for folder in folders]})
    try:
        run = subprocess.run(  # noqa: S603 - this interpreter and this module
            # -I: neither variables such as PYTHONPATH nor the user's site-packages nor the current folder are used.
            [sys.executable, "-I", "-c", _START, str(Path(__file__).parents[2])],
            input=task.encode(),
            capture_output=True,
            timeout=_WALL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _too_much(name) from error
    try:
        # The kernel ends a process at its limit of processor time (SIGXCPU or SIGKILL), so there is no answer.
        answer = json.loads(run.stdout)
    except ValueError as error:
        raise _too_much(name) from error
    if "text" in answer:
        return str(answer["text"])
    raise UsageError(str(answer["message"]), hint=answer["hint"])


_START = "import sys; sys.path.append(sys.argv[1]); from envkit.render.confined import serve; serve()"


def serve() -> None:
    """Run in the child process: read one task from stdin and write the text or the error to stdout."""
    task = json.load(sys.stdin)
    from envkit.render.engine import render_template  # noqa: PLC0415 - imported before the limits apply

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    # No file can be written. The answer goes to a pipe, which this limit does not affect.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        text = render_template(task["name"], task["values"], [Path(folder) for folder in task["folders"]])
        answer = {"text": text}
    except UsageError as error:
        answer = {"message": error.message, "hint": error.hint or ""}
    except MemoryError:
        answer = {"message": _too_much(task["name"]).message, "hint": _TOO_MUCH}
    sys.stdout.write(json.dumps(answer))


_TOO_MUCH = "rendering takes little memory and time; look for an endless loop or multiplied text"


def _too_much(name: str) -> UsageError:
    return UsageError(f"template {name} exceeded the limit on memory or time", hint=_TOO_MUCH)
