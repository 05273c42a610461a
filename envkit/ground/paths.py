"""Find envkit's folders: the cache (can be deleted), the state (logs, plans, records), temporary folders, its own data.

The cache and the state are below the XDG variable if it is an absolute path, else below HOME if that is writable, else
below TMPDIR. A folder that another user could write to is not used: with a forged record in it, an image could be
tagged that was never verified.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from envkit.ground import installation, store
from envkit.ground.errors import EnvironmentProblem

_NAME = "envkit"
_SCRATCH = "envkit-scratch-"
_PACKAGE = Path(__file__).parents[1]
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: XDG_CACHE_HOME/envkit, else below HOME, else below TMPDIR. It need not exist.

    Raises:
        EnvironmentProblem: the folder, or a link with its name, belongs to another user.
    """
    return _own("XDG_CACHE_HOME", ".cache", f"{_NAME}-{os.geteuid()}", environ)


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the state folder: XDG_STATE_HOME/envkit, else below HOME, else below TMPDIR. It need not exist.

    Raises:
        EnvironmentProblem: the folder, or a link with its name, belongs to another user.
    """
    return _own("XDG_STATE_HOME", ".local/state", f"{_NAME}-{os.geteuid()}-state", environ)


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder below TMPDIR for the length of a `with`; also remove those of killed processes.

    A process holds a lock on its folder, which the kernel releases when the process ends.

    Raises:
        OSError: TMPDIR cannot be written.
    """
    above = Path(tempfile.gettempdir())
    store.sweep(above.glob(f"{_SCRATCH}*"))
    with store.fresh_folder(above, prefix=_SCRATCH) as folder:
        yield folder


def caches_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder for the caches of all programs of this user, None if it is not writable."""
    folder = _base("XDG_CACHE_HOME", ".cache", os.environ if environ is None else environ)
    return folder if folder is not None and _writable(folder) else None


def data_folder(name: str) -> Path:
    """Return the folder `templates`, `images` or `docs` of this installation, next to the package or in it.

    Raises:
        EnvironmentProblem: the installation is incomplete.
    """
    # In a wheel the folders are in the package, in a checkout next to it.
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise EnvironmentProblem(
        f"this installation has no {name} folder (searched in and next to {_PACKAGE})",
        hint=installation.again(),
    )


def _base(variable: str, below_home: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a variable, else the one below HOME if it is writable; None without either."""
    named, home = environ.get(variable), environ.get("HOME")
    # The XDG Base Directory Specification: a relative path is invalid and ignored.
    if named and Path(named).is_absolute():
        return Path(named)
    if not home or not Path(home).is_dir():
        return None
    folder = Path(home) / below_home
    return folder if _writable(folder) else None


def _writable(folder: Path) -> bool:
    """Return whether a folder is writable or can be created."""
    # lexists: a broken link at the path means that no folder can be created there.
    nearest = next((candidate for candidate in (folder, *folder.parents) if os.path.lexists(candidate)), folder)
    return os.access(nearest, os.W_OK)


def _own(variable: str, below_home: str, below_tmp: str, environ: Mapping[str, str] | None) -> Path:
    env = os.environ if environ is None else environ
    if (base := _base(variable, below_home, env)) is not None:
        return _checked(base / _NAME, variable)
    try:
        folder = Path(env.get("TMPDIR") or tempfile.gettempdir()) / below_tmp
    except FileNotFoundError as error:
        raise EnvironmentProblem("no folder for temporary files is writable", hint=_hint(variable)) from error
    # Any user may create a folder of that name in TMPDIR, so the owner is checked after creating it.
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: {error.strerror or error}", hint=_hint(variable)) from error
    return _checked(folder, variable)


def _checked(folder: Path, variable: str) -> Path:
    """Return the folder if it belongs to this user, and remove the write permission of others."""
    try:
        status = folder.lstat()
        # A user's own link, for example to a larger disk, is followed. Another user's could be changed at any time.
        if stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid():
            status = folder.stat()
    except OSError:  # it does not exist yet, or its use will report the error
        return folder
    if status.st_uid != os.geteuid():
        kind = "a link owned by" if stat.S_ISLNK(status.st_mode) else "owned by"
        raise EnvironmentProblem(
            f"{folder} is {kind} user {status.st_uid}; envkit uses only folders of its own user ({os.geteuid()})",
            hint=_hint(variable),
        )
    if stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS_WRITE:
        try:
            folder.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
        except OSError as error:
            raise EnvironmentProblem(
                f"{folder} is writable by other users, and chmod failed: {error.strerror or error}",
                hint=_hint(variable),
            ) from error
    return folder


def _hint(variable: str) -> str:
    return f"set {variable} to a folder of your own"
