"""What the sections read: files below a root, environment variables, and the output of programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import Answer, NoAnswerError
from envkit.ground.process import ask as ask_program

PATIENCE_S = 10.0  # nvidia-smi takes seconds if it has to load the driver; with a broken driver it hangs
NO_ANSWER = 124  # as timeout(1); a negative code is a signal
_NOT_RUN = 126  # as a shell
_MOST = 1 << 20  # bytes of a file of /proc, /sys or /etc
# Folders with system programs that are often not on a user's PATH; the last one has WSL's nvidia-smi.
_ALSO = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/wsl/lib")


class Ask(Protocol):
    """Run a program for at most `patience_s` seconds; None if it is missing, code NO_ANSWER if it did not answer."""

    def __call__(self, argv: Sequence[str], patience_s: float = PATIENCE_S, /) -> Answer | None:
        """Run `argv`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A machine: its files, environment variables and programs. Tests use a folder and a table of answers."""

    root: Path
    environ: Mapping[str, str]
    ask: Ask

    def path(self, name: str) -> Path:
        """Return an absolute path of the machine as a path below `root`."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        """Return a file's text (at most 1 MiB), or "" if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(_MOST).decode(errors="replace")
        # ValueError: a path with a null byte.
        except (OSError, ValueError):
            return ""

    def exists(self, name: str) -> bool:
        """Return whether the path exists; False if this user may not look."""
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; empty if it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.path(folder))))  # noqa: PTH208 - names alone
        except OSError:
            return ()

    def home(self) -> str:
        """Return $HOME, or "" if it is not set."""
        return self.environ.get("HOME", "")


def this_machine() -> View:
    """Return a view of the machine that this process runs on."""
    return View(root=Path("/"), environ=os.environ, ask=run)


def run(argv: Sequence[str], patience_s: float = PATIENCE_S) -> Answer | None:
    """Run a program with a time limit; see `Ask`."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_ALSO))
    program = shutil.which(argv[0], path=path)
    if program is None:
        return None
    try:
        return ask_program([program, *argv[1:]], patience_s=patience_s)
    except EnvironmentProblem as error:
        return Answer(code=NO_ANSWER if isinstance(error, NoAnswerError) else _NOT_RUN, out="", err=error.message)
