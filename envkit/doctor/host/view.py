"""The inputs of the sections: files below a root, the environment, and output of programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import Answer
from envkit.ground.process import ask as ask_program

PATIENCE_S = 10.0  # nvidia-smi takes seconds where it has to load the driver; a broken one hangs
_MOST = 1 << 20  # bytes of a file of /proc, /sys or /etc
# Where programs are that a user's PATH may lack.
_ALSO = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/wsl/lib")


class Ask(Protocol):
    """Runs a program: its answer, or None where it is missing; a code of -1 means that it did not answer in time."""

    def __call__(self, argv: Sequence[str], patience_s: float = PATIENCE_S, /) -> Answer | None:
        """Run `argv` for at most so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A machine as the sections see it; in tests it is a folder and a table of answers."""

    root: Path
    environ: Mapping[str, str]
    ask: Ask

    def path(self, name: str) -> Path:
        """An absolute path of the machine."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        """A file's text (at most 1 MiB), empty where it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(_MOST).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    def exists(self, name: str) -> bool:
        """Whether there is such a path that this user may look at."""
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in a folder, sorted; empty where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.path(folder))))  # noqa: PTH208 - names alone
        except OSError:
            return ()

    def home(self) -> str:
        """The user's home folder as the environment says it, empty where it does not."""
        return self.environ.get("HOME", "")


def this_machine() -> View:
    """The machine that this process runs on."""
    return View(root=Path("/"), environ=os.environ, ask=run)


def run(argv: Sequence[str], patience_s: float = PATIENCE_S) -> Answer | None:
    """Run a program with a time limit; its messages are in English."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_ALSO))
    program = shutil.which(argv[0], path=path)
    if program is None:
        return None
    try:
        return ask_program([program, *argv[1:]], patience_s=patience_s)
    except EnvironmentProblem as error:
        return Answer(code=-1, out="", err=error.message)
