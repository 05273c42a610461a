"""Files that are either old or new and never half: written beside, flushed, renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`. A run killed at any moment leaves the old file or the new one.

    The permission bits of an existing file are kept; a new one gets what the umask allows. A symbolic link is
    followed, and a device or a pipe (`/dev/stdout`) is written to as it is.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old file is untouched.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, target)  # noqa: PTH105 - both are names in one folder
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error  # writing names no file
        raise
    _sync_folder(target.parent)


def room(place: Path) -> str:
    """Return what is free on the file system of a path or its nearest existing parent: `1.2 GB free`."""
    found = next((one for one in (place, *place.absolute().parents) if one.exists()), Path("/"))
    try:
        volume = os.statvfs(found)
    except OSError:
        return "free space unknown"
    free = f"{volume.f_bavail * volume.f_frsize / 1e9:.1f} GB free"
    # File systems without a fixed number of inodes say that they have none at all.
    return f"{free}, but no inode for another file" if volume.f_files and not volume.f_favail else free


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the file system offers that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
