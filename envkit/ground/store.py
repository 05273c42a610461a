"""Files and folders that several processes use at once: locks, atomic writers, folders in the making, full disks.

Locks use flock(2). A lock belongs to an open file or folder and ends with the last process that has it open, so a
killed run never blocks another one. On a file system without locks (some network file systems), locks that only save
work are granted, and nothing counts as abandoned.

Two patterns repeat. A writer uses a temporary name and renames at the end, so a killed run leaves the old file or the
new one. An unfinished folder is locked by the process that fills it, and the next run removes unlocked ones (`sweep`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from envkit.ground.errors import EnvironmentProblem

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and of a used-up quota."""
LARGER_CACHE = "envkit cache prune, or set XDG_CACHE_HOME to a larger disk"
OWN_CACHE = "set XDG_CACHE_HOME to your own folder"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def lock(descriptor: int, *, shared: bool = False, wait: bool = True, needed: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return False where another process holds it and `wait` is False.

    A file system without locks grants every lock, because it cannot tell who holds one, unless one is `needed`:
    there two writers at once would corrupt data unnoticed.

    Raises:
        OSError: the lock is needed, and the file system has none.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError:
        if needed:
            raise
    return True


def claim(descriptor: int) -> bool:
    """Lock an open file or folder, and return whether certainly no other process uses it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_folder(path: Path) -> int:
    """Open a folder, never one behind a link.

    Raises:
        OSError: it is missing, or not a folder.
    """
    return os.open(path, _FOLDER)


@contextlib.contextmanager
def locked(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a folder for the length of a `with`.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(descriptor, shared=shared)
        yield
    finally:
        os.close(descriptor)


def lock_file(path: Path, mode: int = 0o600, *, needed: bool = False) -> int | None:
    """Open a file, made where it is missing, and lock it; None where another process holds it. As `lock`.

    Raises:
        OSError: the file cannot be made, or a needed lock not be had.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        try:
            free = lock(descriptor, wait=False, needed=needed)
            if free and is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not free:
            return None
        # Its last holder removed or renamed it between the two calls.


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[os.stat_result | None]:
    """Hold the lock of what no other process uses: yields its status, None if it is in use or another user's.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    # A pipe of that name must not block the opening.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        free = status.st_uid == os.geteuid() and claim(descriptor) and is_at(descriptor, path)
        yield status if free else None
    finally:
        os.close(descriptor)


def sweep(paths: Iterable[Path], *, idle_s: float = 0.0) -> None:
    """Remove the files and folders of this user that no process has locked.

    Args:
        paths: what killed runs may have left.
        idle_s: leave alone what was written less than so many seconds ago: its maker may not have locked it yet.
    """
    for path in paths:
        with contextlib.suppress(OSError), claimed(path) as status:
            if status is None or (idle_s and time.time() - status.st_mtime < idle_s):
                continue
            if stat.S_ISDIR(status.st_mode):
                remove_tree(path)
            else:
                path.unlink()


@contextlib.contextmanager
def fresh_folder(
    above: Path, *, prefix: str = "", suffix: str = "", mode: int = 0o700, shared: bool = False
) -> Iterator[Path]:
    """Make a folder, locked for the length of a `with` and removed at its end unless it was renamed.

    Args:
        above: where it is made; exists.
        prefix: what its name begins with.
        suffix: what its name ends with.
        mode: its permissions, less what the umask takes.
        shared: whether a child process takes the lock, too.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        folder = above / f"{prefix}{secrets.token_hex(6)}{suffix}"
        folder.mkdir(mode=mode)
        # Another process may sweep it before it is locked.
        try:
            descriptor = open_folder(folder)
        except FileNotFoundError:
            continue
        lock(descriptor, shared=shared)
        if is_at(descriptor, folder):
            break
        os.close(descriptor)
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(descriptor)


def remove_tree(folder: Path) -> bool:
    """Remove a folder whose folders may be closed to their owner; return whether it is gone. A link stays."""
    _open_up(os.fspath(folder))
    for parent, names, _ in os.walk(folder):
        for name in names:  # before the walk enters them
            _open_up(os.path.join(parent, name))  # noqa: PTH118 - many folders
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def _open_up(folder: str) -> None:
    with contextlib.suppress(OSError):
        if not os.path.islink(folder):  # noqa: PTH114 - many folders
            os.chmod(folder, 0o700)  # noqa: PTH101


@contextlib.contextmanager
def fresh_file(
    folder: Path, *, prefix: str = "", suffix: str = "", mode: int = 0o666
) -> Iterator[tuple[Path, IO[bytes]]]:
    """Make and open a file, removed at the end of a `with` unless it was renamed. `mode` is less what the umask takes.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / f"{prefix}{secrets.token_hex(6)}{suffix}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            yield path, stream
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name beside `path` that takes its place at the end of a `with`.

    A run killed at any moment leaves the old file or the new one, and so does an exception. The permission bits of an
    existing file are kept; a new one gets what the umask allows. A symbolic link is followed.

    Args:
        path: the file; the folders above it are made.
        durable: whether the bytes are flushed to the disk first, so that a power cut leaves no damaged file either.

    Raises:
        OSError: the folder cannot be written or the disk is full; it names the file.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    old = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    made = fresh_file(target.parent, prefix=f".{target.name}.", suffix=".tmp", mode=0o666 if old is None else old)
    try:
        with made as (temporary, stream):
            yield stream
            stream.flush()
            # Once more: what open(2) gave is less the umask.
            if old is not None:
                os.fchmod(stream.fileno(), old)
            if durable:
                os.fsync(stream.fileno())
            temporary.replace(target)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # writing names no file
    if durable:
        sync_folder(target.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`. A run killed at any moment leaves the old file or the new one.

    As `replacing`, but a device or a pipe (`/dev/stdout`) is written to as it is.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old file is untouched.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    with replacing(path) as stream:
        stream.write(data)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist. A run killed at any moment leaves no file or the whole one.

    Raises:
        FileExistsError: there is something at `path`, even a link that leads nowhere.
        OSError: the folder cannot be written or the disk is full.
    """
    with fresh_file(path.parent, prefix=f".{path.name}.", suffix=".tmp") as (temporary, stream):
        stream.write(data)
        stream.flush()
        # link(2) fails where the name exists; rename(2) would replace it.
        os.link(temporary, path)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the file system offers that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def room(place: Path) -> str:
    """Return what is free on the file system of a path or its nearest existing parent: `1.2 GB free`."""
    nearest = next((folder for folder in (place, *place.absolute().parents) if folder.exists()), Path("/"))
    try:
        volume = os.statvfs(nearest)
    except OSError:
        return "free space unknown"
    free = f"{volume.f_bavail * volume.f_frsize / 1e9:.1f} GB free"
    # File systems without a fixed number of inodes say that they have none at all.
    return f"{free}, but no inode for another file" if volume.f_files and not volume.f_favail else free


def disk_full(place: Path, *, hint: str = LARGER_CACHE) -> EnvironmentProblem:
    """Return the error for a full disk."""
    return EnvironmentProblem(f"disk full on {place} ({room(place)})", hint=hint)


def unusable(place: Path, error: OSError, *, larger: str = LARGER_CACHE, hint: str = OWN_CACHE) -> EnvironmentProblem:
    """Return the error for a file or folder that the system refuses.

    Args:
        place: what cannot be read or written.
        error: what the system said.
        larger: the next step where the disk is full.
        hint: the next step otherwise.
    """
    if error.errno in FULL:
        return disk_full(place, hint=larger)
    return EnvironmentProblem(f"{place} cannot be used: {error.strerror or error}", hint=hint)
