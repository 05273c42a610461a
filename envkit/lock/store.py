"""A lock on disk: readable JSON with one artifact per line, and one way to write it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import LockError, UsageError
from envkit.ground.store import write_atomic
from envkit.lock.reading import lock_from_json

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.lock.model import Lock

_LARGEST = 64 << 20  # bytes; the lock of a thousand packages has half a megabyte


def to_text(lock: Lock) -> str:
    """The one text of a lock: two-space indents down to the artifacts, each of which is one line; a final newline."""
    return _shown(lock.to_json(), "") + "\n"


def digest_of(lock: Lock) -> str:
    """`sha256:` and a hex digest of the one text of a lock: what an image's label names."""
    return "sha256:" + hashlib.sha256(to_text(lock).encode()).hexdigest()


def store_lock(folder: Path, lock: Lock) -> Path:
    """Keep a lock in the state folder under its digest; returns the file.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / "locks" / f"{digest_of(lock).removeprefix('sha256:')}.json"
    write_lock(path, lock)
    return path


def write_lock(path: Path, lock: Lock) -> bool:
    """Replace the file by a lock, or leave it alone when it says the same; returns whether it changed.

    Raises:
        OSError: the file cannot be written; an old one is as it was.
    """
    data = to_text(lock).encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomic(path, data)
    return True


def read_lock(path: Path) -> Lock:
    """The lock in a file.

    Raises:
        LockError: the file does not exist.
        UsageError: it cannot be read, or a field is missing, unknown or invalid; every error is named.
        IntegrityError: an artifact has no SHA-256.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(
                f"{path}: {path.stat().st_size} bytes are too large for a lock", hint="envkit lock writes a new one"
            )
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise LockError(f"there is no lock at {path}", hint="envkit lock") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint="envkit lock -o FILE") from error
    try:
        tree = json.loads(data.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}", hint="envkit lock writes a new one") from error
    return lock_from_json(tree, str(path))


# Of two equal keys parsers take the first or the last: what a reviewer reads must be what is built.
def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.80} is given twice")
    return table


def _shown(value: Any, indent: str) -> str:
    inner = f"{indent}  "
    if isinstance(value, dict) and value and not _is_row(value):
        lines = [f"{inner}{_plain(key)}: {_shown(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"{inner}{_shown(item, inner)}" for item in value) + f"\n{indent}]"
    return _plain(value)


def _is_row(value: dict[str, Any]) -> bool:
    return "sha256" in value


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
