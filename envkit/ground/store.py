"""Files and folders that several processes use at once: locks, atomic writes, unfinished folders, full disks.

Locks use flock(2). A lock belongs to an open file or folder and is released when the last process closes it, so a
killed run never blocks another one. On a file system without locks (some network file systems), locks that only avoid
repeated work are granted, and nothing counts as abandoned.

There are two patterns. A file is written under a temporary name and renamed at the end, so a killed run leaves the old
file or the new one. An unfinished folder is locked by the process that fills it, and the next run removes unlocked ones
(`sweep`).
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
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.sizes import shown_size

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and of a used-up quota."""
LARGER_CACHE = "envkit cache prune, or set XDG_CACHE_HOME to a larger disk"
OWN_CACHE = "set XDG_CACHE_HOME to your own folder"
_POLL_S = 0.05  # flock has no time limit, and a signal has to end the wait
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def lock(descriptor: int, *, shared: bool = False, wait: bool = True, needed: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return False if another process holds it and `wait` is False.

    On a file system without locks, every lock is granted unless it is `needed`: without such a lock, two writers could
    corrupt data unnoticed.

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
    """Lock an open file or folder; return whether it is certain that no other process uses it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_folder(path: Path) -> int:
    """Open a folder, but not through a link.

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
    """Open or create a file and lock it, as `lock`; return None if another process holds it.

    Raises:
        OSError: the file cannot be created, or a needed lock is not supported.
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
        # Another process removed or renamed the file between the two calls, so try again.


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[os.stat_result | None]:
    """Lock a file or folder that no other process uses; yield its status, None if it is in use or another user's.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    # O_NONBLOCK: opening a pipe of that name must not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        free = status.st_uid == os.geteuid() and claim(descriptor) and is_at(descriptor, path)
        yield status if free else None
    finally:
        os.close(descriptor)


class Held:
    """Shared locks for the lifetime of this object: what they are on is not pruned."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        # With the list and not `self`, which would then never be collected.
        weakref.finalize(self, _close, self._descriptors)

    def add(self, descriptor: int) -> None:
        """Take over an open file or folder, and lock it."""
        self._descriptors.append(descriptor)
        lock(descriptor, shared=True)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Flights:
    """Locks on keys, as files in one folder: one process makes what several need, the others wait and then use it.

    The file `<folder>/<key>.making` is locked by the process that makes it. Nothing waits for a process that has ended.
    Two rules prevent deadlocks: a process that holds a key while it waits for another locks keys in sorted order, and a
    process that locked some keys without waiting finishes its work and releases them before it waits for the rest.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def free(self, keys: Iterable[str]) -> Iterator[frozenset[str]]:
        """Lock and return the keys that no other process holds, until the block ends."""
        with contextlib.ExitStack() as locks:
            taken = set()
            for key in keys:
                descriptor = lock_file(self._path(key))
                if descriptor is not None:
                    locks.callback(self._give, key, descriptor)
                    taken.add(key)
            yield frozenset(taken)

    @contextlib.contextmanager
    def all(self, keys: Iterable[str], check: Callable[[], object]) -> Iterator[None]:
        """Lock all keys as soon as they are free; `check` is called while waiting and may raise."""
        with contextlib.ExitStack() as locks:
            for key in sorted(set(keys)):
                while (descriptor := lock_file(self._path(key))) is None:
                    check()
                    time.sleep(_POLL_S)
                locks.callback(self._give, key, descriptor)
            yield

    def wait(self, key: str, check: Callable[[], object]) -> None:
        """Wait until the key is free; `check` is called while waiting and may raise."""
        with self.all([key], check):
            return

    def _path(self, key: str) -> Path:
        import hashlib  # noqa: PLC0415 - loads OpenSSL, which `envkit resolve` does not need

        # A hash, because keys contain slashes: `push sha256:... to host/name`.
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.making"

    def _give(self, key: str, descriptor: int) -> None:
        # While it is still locked: after that, the file may be another process's.
        with contextlib.suppress(OSError):
            self._path(key).unlink()
        os.close(descriptor)


def sweep(paths: Iterable[Path], *, idle_s: float = 0.0) -> None:
    """Remove the files and folders of this user that no process has locked.

    Args:
        paths: files and folders that killed runs may have left.
        idle_s: keep what was modified within this time, because its process may not have locked it yet.
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
    """Make a folder that is locked for the length of a `with` and removed at its end unless it was renamed.

    Args:
        above: the parent folder, which exists.
        prefix: the beginning of its name.
        suffix: the end of its name.
        mode: its permissions before the umask is applied.
        shared: whether a child process locks it too.

    Raises:
        OSError: the folder cannot be created.
    """
    while True:
        folder = above / f"{prefix}{secrets.token_hex(6)}{suffix}"
        folder.mkdir(mode=mode)
        # Another process may remove it (`sweep`) before it is locked.
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
    """Remove a folder, including subfolders without write permission; return whether it is gone. A link is kept."""
    _make_writable(os.fspath(folder), None)
    # By descriptors: anyone who can write to a folder in it could replace a path by a link that leads out of it.
    with contextlib.suppress(OSError):  # it does not exist
        for _, names, _, parent in os.fwalk(folder):
            for name in names:  # before the walk enters them
                _make_writable(name, parent)
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def _make_writable(name: str, parent: int | None) -> None:
    with contextlib.suppress(OSError):
        if os.chmod in os.supports_follow_symlinks:  # not on Linux
            os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
            return
        descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)  # noqa: PTH101 - fchmod(2) refuses such a descriptor
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def fresh_file(
    folder: Path, *, prefix: str = "", suffix: str = "", mode: int = 0o666
) -> Iterator[tuple[Path, IO[bytes]]]:
    """Create and open a file that is removed at the end of a `with` unless it was renamed. The umask applies to `mode`.

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
    """Write a file under a temporary name in the same folder and rename it to `path` at the end of a `with`.

    A run that is killed at any moment leaves the old file or the new one, and so does an exception. The permissions of
    an existing file are kept; those of a new file follow the umask. A symbolic link is followed.

    Args:
        path: the file; its parent folders are created.
        durable: whether to flush the file to the disk first, so that a power failure cannot leave a damaged file.

    Raises:
        OSError: the folder cannot be written or the disk is full; the error names the file.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    file = fresh_file(target.parent, prefix=f".{target.name}.", suffix=".tmp", mode=0o666 if mode is None else mode)
    try:
        with file as (temporary, stream):
            yield stream
            stream.flush()
            # open(2) applied the umask to the mode.
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            if durable:
                # Before the rename, which may otherwise reach the disk first and leave an empty file.
                os.fsync(stream.fileno())
            temporary.replace(target)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # an error of write(2) does not name the file
    if durable:
        sync_folder(target.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the contents of a file. A run that is killed at any moment leaves the old file or the new one.

    As `replacing`, but a device or a pipe (`/dev/stdout`) is written to directly.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old file is unchanged.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    with replacing(path) as stream:
        stream.write(data)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet. A run that is killed at any moment leaves no file or the complete one.

    Raises:
        FileExistsError: `path` exists, even as a broken link.
        OSError: the folder cannot be written or the disk is full.
    """
    with fresh_file(path.parent, prefix=f".{path.name}.", suffix=".tmp") as (temporary, stream):
        stream.write(data)
        stream.flush()
        # link(2) fails where the name exists; rename(2) would replace it.
        os.link(temporary, path)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def free_space(path: Path) -> str:
    """Return the free space on the file system of a path or its nearest existing parent: `1.2 GB free`."""
    nearest = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path("/"))
    try:
        volume = os.statvfs(nearest)
    except OSError:
        return "free space unknown"
    free = f"{shown_size(volume.f_bavail * volume.f_frsize, 'GB', 1)} free"
    # File systems without a fixed number of inodes report a total of 0.
    return f"{free}, but no free inodes" if volume.f_files and not volume.f_favail else free


def disk_full(path: Path, *, hint: str = LARGER_CACHE) -> EnvironmentProblem:
    """Return the error for a full disk."""
    return EnvironmentProblem(f"disk full on {path} ({free_space(path)})", hint=hint)


def unusable(path: Path, error: OSError, *, hint: str = OWN_CACHE) -> EnvironmentProblem:
    """Return the error for a file or folder that cannot be read or written; `hint` is for others than a full disk."""
    if error.errno in FULL:
        return disk_full(path)
    return EnvironmentProblem(f"{path} cannot be used: {error.strerror or error}", hint=hint)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate the system's errors into those of `unusable`."""
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error
