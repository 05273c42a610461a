"""Locks on disk: readable JSON with one artifact per line."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import foreign, trees
from envkit.ground.errors import LockError, UsageError
from envkit.ground.store import write_atomic
from envkit.lock.model import FILE
from envkit.lock.reading import lock_from_json

if TYPE_CHECKING:
    from envkit.lock.model import Lock

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LARGEST = 64 << 20  # bytes; the lock of a thousand packages has half a megabyte
_HEAD = 64 << 10  # bytes in which a lock names its schema
_OTHER_FILE = "envkit lock -o FILE"


def to_text(lock: Lock) -> str:
    """Return the text of a lock: indented by two spaces, one line for each artifact, and a final newline."""
    return _formatted(lock.to_json(), "") + "\n"


def digest_of(lock: Lock) -> str:
    """Return `sha256:` and the hex digest of a lock's text, as in the label of an image."""
    return "sha256:" + hashlib.sha256(to_text(lock).encode()).hexdigest()


def store_lock(folder: Path, lock: Lock) -> Path:
    """Write a lock to the state folder under its digest; return the file.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _path(folder, digest_of(lock))
    write_lock(path, lock)
    return path


def load_lock(folder: Path, digest: str) -> Lock | None:
    """Return the lock that `store_lock` wrote to the state folder under a digest; None if there is none.

    Raises:
        UsageError: the file is not a lock.
        IntegrityError: an artifact in it has no SHA-256, or the seal does not match.
    """
    path = _path(folder, digest)
    # The digest may be a label of an image, which could name a file outside of the folder.
    if not _DIGEST.fullmatch(digest) or not path.is_file():
        return None
    lock = read_lock(path)
    return lock if digest_of(lock) == digest else None


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a lock to a file unless the file already has the same text; return whether it changed.

    The `envkit.lock` of the current folder is a name that the folder's author can prepare: it is not written through a
    link, and only a lock is replaced.

    Raises:
        UsageError: `envkit.lock` is a link or another file.
        OSError: the file cannot be written; an old file is unchanged.
    """
    data = to_text(lock).encode()
    root = _root(path)
    if root is not None:
        return foreign.write(path, data, root=root, is_ours=is_lock, hint=_OTHER_FILE)
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomic(path, data)
    return True


def check_write(path: Path) -> None:
    """Refuse what `write_lock` would refuse, before a lock is solved.

    Raises:
        UsageError: `envkit.lock` is a link or another file.
    """
    root = _root(path)
    if root is not None:
        try:
            foreign.check_write(path, root=root, is_ours=is_lock, hint=_OTHER_FILE)
        except OSError as error:
            raise foreign.unreadable(path, error) from error


def _root(path: Path) -> Path | None:
    """Return the folder that a lock must not leave; None if the user chose its name."""
    return path.parent if path == Path(FILE) else None


def is_lock(data: bytes) -> bool:
    """Return whether a file begins like a lock, even if it is empty, cut off or has merge conflicts."""
    return not data.strip() or b'"envkit.lock/' in data[:_HEAD]


def read_lock(path: Path) -> Lock:
    """Return the lock in a file. The `envkit.lock` of the current folder must not be a link out of it.

    Raises:
        LockError: the file does not exist.
        UsageError: it cannot be read, or a field is missing, unknown or invalid; all errors are reported.
        IntegrityError: an artifact has no SHA-256, or the seal does not match.
    """
    try:
        data = foreign.read(path, _LARGEST, root=_root(path), hint=_OTHER_FILE)
    except UsageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise LockError(f"there is no lock at {path}", hint="envkit lock") from error
        raise
    tree = trees.from_json(data, str(path), unique=True, hint="envkit lock writes a new one")
    return lock_from_json(tree, str(path))


def _path(folder: Path, digest: str) -> Path:
    return folder / "locks" / f"{digest.removeprefix('sha256:')}.json"


def _formatted(value: Any, indent: str) -> str:
    inner = f"{indent}  "
    if isinstance(value, dict) and value and not _is_row(value):
        lines = [f"{inner}{_plain(key)}: {_formatted(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"{inner}{_formatted(item, inner)}" for item in value) + f"\n{indent}]"
    return _plain(value)


def _is_row(value: dict[str, Any]) -> bool:
    # Every artifact has this key, even if its value is null.
    return "sha256" in value


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
