"""Build contexts: tars whose bytes depend only on the names and contents of their files."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING

from envkit.ground import imagepaths
from envkit.ground.errors import UsageError
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LIMIT_BYTES = 256 << 20  # the archive is held in memory


def pack(files: Mapping[str, str | bytes], *, executable: frozenset[str] = frozenset()) -> bytes:
    """Return a tar of `files` (relative path -> content), the same bytes for the same files.

    Entries are sorted, dated 1970-01-01 and owned by 0:0 without names. Their mode is 0755 for folders and for the
    files in `executable`, else 0644.

    Raises:
        UsageError: a name is absolute, leads out of the context or has control characters, or the total exceeds 256
        MiB.
    """
    entries = {name: content.encode() if isinstance(content, str) else content for name, content in files.items()}
    for name in entries:
        # A program that gets a name with a leading hyphen would read it as an option.
        if imagepaths.fault(name) or name.startswith("-"):
            raise UsageError(f"{name!r} is not a file name for a build context", hint="use a relative path without ..")
    total = sum(map(len, entries.values()))
    if total > LIMIT_BYTES:
        raise UsageError(
            f"the build context has {shown_size(total, 'MiB')}, more than {shown_size(LIMIT_BYTES, 'MiB')}",
            hint="download large files during the build, or put them into a base image",
        )
    folders = {"/".join(name.split("/")[:depth]) for name in entries for depth in range(1, name.count("/") + 1)}
    buffer = io.BytesIO()
    # PAX differs from USTAR only for names that USTAR cannot represent.
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(folders | set(entries)):
            entry = tarfile.TarInfo(name)
            if name in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(entries[name]), 0o755 if name in executable else 0o644
                archive.addfile(entry, io.BytesIO(entries[name]))
    return buffer.getvalue()


def unpack(context: bytes, folder: Path) -> None:
    """Write a context that `pack` made into a new folder, with its modes and dates."""
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(context)) as archive:
        for entry in archive:
            path = folder / entry.name
            if entry.isdir():
                path.mkdir()
                continue
            content = archive.extractfile(entry)
            path.write_bytes(content.read() if content is not None else b"")
            path.chmod(entry.mode)
            os.utime(path, (0, 0))
    # After the files: creating them changes the times of their folders.
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
            os.utime(path, (0, 0))
