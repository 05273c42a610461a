"""The user's own data for C12 and C22: what a run gets of it, and what a record may contain of it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from envkit.ground.canonical import digest_of
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.run.model import DATA

SAYS = "user data: "
"""Start of the lines of the payload's stderr that only the user may see: file names and texts of exceptions."""
LIMIT_S = 60.0
"""Seconds to open and try the user's folder and code, before anything is timed."""
CODE_BYTES = 4 << 20  # the code goes into the container as one archive
_HINT = "name a folder of this machine that you can read: --data DIR"
# train:make, pkg.data:Folder.open
_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# Characters that Podman or proot read as separators of paths and options.
_SEPARATORS = re.compile('[:,"\\\\\x00-\x1f]')


@dataclass(frozen=True, kw_only=True)
class UserData:
    """A folder of files, a Dataset, or a Dataset that reads the folder."""

    folder: Path | None  # absolute
    dataset: str | None  # 'module:callable'
    code: Mapping[str, bytes]  # the module's sources in the working folder, by relative path

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Return the data's part of the spec. It goes into the record, so it has no path of this machine."""
        return {
            "folder": self.folder is not None,
            "dataset": self.dataset,
            "code_sha256": digest_of({name: data.hex() for name, data in self.code.items()}) if self.code else None,
            "limit_s": LIMIT_S,
        }

    def without_names(self, stderr: bytes) -> bytes:
        """Return a run's stderr without the lines that begin with SAYS or contain the folder's path."""
        hidden = (DATA.encode(), *([] if self.folder is None else [os.fsencode(self.folder)]))
        kept = (
            line
            for line in stderr.splitlines(keepends=True)
            if not line.startswith(SAYS.encode()) and not any(path in line for path in hidden)
        )
        return b"".join(kept)


def user_data(folder: Path | None, dataset: str | None, here: Path) -> UserData | None:
    """Return the data of `--data` and `--dataset`, None if neither is given; `here` is the working folder.

    Raises:
        UsageError: the folder does not exist, its path cannot be mounted, or `dataset` is not `module:callable`.
        EnvironmentProblem: a source of the module cannot be read.
    """
    if folder is None and dataset is None:
        return None
    return UserData(
        folder=None if folder is None else _folder(folder),
        dataset=None if dataset is None else _checked(dataset),
        code={} if dataset is None else _sources(dataset.partition(":")[0].partition(".")[0], here),
    )


def without_folder(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line for a record, without the path of `--data`."""
    pairs = zip(("", *argv), argv, strict=False)
    hidden = ("DIR" if before == "--data" else word for before, word in pairs)
    return tuple("--data=DIR" if word.startswith("--data=") else word for word in hidden)


def _folder(path: Path) -> Path:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"--data: {str(path)!r} does not exist", hint=_HINT) from error
    except OSError as error:
        raise EnvironmentProblem(f"--data: {str(path)!r} cannot be read: {error.strerror}", hint=_HINT) from error
    if not is_folder:
        raise UsageError(f"--data: {str(path)!r} is not a folder", hint=_HINT)
    if _SEPARATORS.search(str(path.absolute())):
        raise UsageError(
            f'--data: {str(path.absolute())!r} has a character that runners cannot mount: one of : , " \\',
            hint='ln -s "THE FOLDER" data && envkit verify --data data',
        )
    return Path(os.path.normpath(path.absolute()))


def _checked(dataset: str) -> str:
    if not _CALLABLE.fullmatch(dataset):
        raise UsageError(f"--dataset: {dataset!r:.200} is not MODULE:CALLABLE", hint="--dataset train:make")
    return dataset


def _sources(top: str, here: Path) -> dict[str, bytes]:
    """Return the Python files of a module or package in the working folder; empty if it is not there."""
    package = here / top
    paths = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [here / f"{top}.py"]
    try:
        sources = {path.relative_to(here).as_posix(): path.read_bytes() for path in paths if path.is_file()}
    except OSError as error:
        raise EnvironmentProblem(f"--dataset: {error.filename} cannot be read: {error.strerror}") from error
    size = sum(map(len, sources.values()))
    if size > CODE_BYTES:
        raise UsageError(
            f"--dataset: the sources of {top!r} in this folder have {size} bytes, more than {CODE_BYTES}",
            hint="put the Dataset into a module of its own",
        )
    return sources
