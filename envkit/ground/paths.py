"""Where envkit keeps its own data: the cache (can be made again) and the state (logs, plans, records), this user's own.

What another user could write is not used: a record there would let an image be tagged that nobody verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from envkit.ground.errors import EnvironmentProblem

_NAME = "envkit"
_SCRATCH = "envkit-scratch-"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: XDG_CACHE_HOME/envkit, else below HOME, else below TMPDIR. It need not exist.

    Raises:
        EnvironmentProblem: the folder, or a link in its place, belongs to another user.
    """
    return _own("XDG_CACHE_HOME", ".cache", f"{_NAME}-{os.geteuid()}", environ)


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the state folder: XDG_STATE_HOME/envkit, else below HOME, else below TMPDIR. It need not exist.

    Raises:
        EnvironmentProblem: the folder, or a link in its place, belongs to another user.
    """
    return _own("XDG_STATE_HOME", ".local/state", f"{_NAME}-{os.geteuid()}-state", environ)


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder below TMPDIR for the length of a `with`; a later call removes what a killed process left.

    Whoever uses a folder holds a lock on it, which ends with the process.

    Raises:
        OSError: TMPDIR cannot be written.
    """
    above = Path(tempfile.gettempdir())
    _sweep(above)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=above))
        # Another process may sweep it before it is locked.
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            break
        os.close(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _sweep(above: Path) -> None:
    """Remove this user's scratch folders that no process holds."""
    for path in above.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _own(variable: str, below_home: str, below_tmp: str, environ: Mapping[str, str] | None) -> Path:
    env = os.environ if environ is None else environ
    base, home = env.get(variable), env.get("HOME")
    if base and Path(base).is_absolute():
        return _checked(Path(base) / _NAME, variable)
    if home and os.access(home, os.W_OK):
        return _checked(Path(home) / below_home / _NAME, variable)
    try:
        folder = Path(env.get("TMPDIR") or tempfile.gettempdir()) / below_tmp
    except FileNotFoundError as error:
        raise EnvironmentProblem("no folder for temporary files can be written", hint=_hint(variable)) from error
    # Everybody may make a folder of that name there, so the look at it has to come after its making.
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: {error.strerror or error}", hint=_hint(variable)) from error
    return _checked(folder, variable)


def _checked(folder: Path, variable: str) -> Path:
    """Return the folder if it is this user's; take the right to write in it from everybody else."""
    try:
        status = folder.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid():
            status = folder.stat()
    except OSError:  # it does not exist yet, or whoever uses it is told why it cannot be used
        return folder
    if status.st_uid != os.geteuid():
        kind = "a link of" if stat.S_ISLNK(status.st_mode) else "the folder of"
        raise EnvironmentProblem(
            f"{folder} is {kind} user {status.st_uid}, and envkit uses only folders of its own user ({os.geteuid()})",
            hint=_hint(variable),
        )
    if stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS_WRITE:
        try:
            folder.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
        except OSError as error:
            raise EnvironmentProblem(
                f"{folder} can be written by other users: {error.strerror or error}", hint=_hint(variable)
            ) from error
    return folder


def _hint(variable: str) -> str:
    return f"set {variable} to a folder of your own"
