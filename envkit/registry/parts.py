"""The parts of downloads: `<sha256>.part`, locked by the run that fills it, so that a later one goes on with it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import IO, TYPE_CHECKING

from envkit.ground import store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def part(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """The part of a file, open and locked; one of its own where another run has the lock. Empty ones are removed."""
    part = path.with_name(f"{path.name}.part")
    file = _locked(part)
    if file is None:
        part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident():x}.part")
        file = _locked(part)
    if file is None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(part))
    with file:
        try:
            yield part, file
        except BaseException as error:
            full = isinstance(error, OSError) and error.errno in store.FULL
            with contextlib.suppress(OSError):
                if full:
                    file.truncate(0)
                file.flush()
                if full or _is_own(part) or not os.fstat(file.fileno()).st_size:
                    part.unlink()
            raise


def _is_own(part: Path) -> bool:
    """Whether a part belongs to one thread, because another run had the common one: no one resumes it."""
    return part.name.count(".") > 1


def sweep(folder: Path) -> None:
    """Remove such parts of runs that were killed."""
    store.sweep(filter(_is_own, folder.glob("*.part")))


def _locked(part: Path) -> IO[bytes] | None:
    """Open a part and lock it; None where another process holds it."""
    # Needed: of two runs that fill one file, the first would give it its name while the second still writes.
    descriptor = store.lock_file(part, 0o644, needed=True)
    return None if descriptor is None else os.fdopen(descriptor, "r+b")
