"""The cache of wheels that were built from source, shared by all engines.

    BUILT/KEY/note.json    the outcome of a build: a wheel, or further requirements of its backend
    BUILT/KEY/NAME.whl     the wheel

A folder is written under a temporary name and renamed. A wheel is used only if its SHA-256 is that of the lock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground import store
from envkit.ground.cache import BUILT_WHEELS
from envkit.ground.errors import LockError
from envkit.lock import values
from envkit.lock.model import BUILT, Lock, Wheel

CONTEXT = "wheels"
"""The folder of a build context for these wheels."""
_NOTE = "note.json"
_SCHEMA = "envkit.built/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a build."""

    wheel: Path | None  # None: the backend needs `requires` first
    requires: tuple[str, ...] = ()
    cxx11_abi: str | None = None  # of the torch that was installed: 'true' | 'false'


def find(cache: Path, key: str) -> Outcome | None:
    """Return the outcome of the build with this key, None if it is not in the cache or is damaged."""
    folder = BUILT_WHEELS.at(cache, key)
    try:
        note = json.loads((folder / _NOTE).read_bytes())
        if note["schema"] != _SCHEMA:
            return None
        if note["file"] is None:
            return Outcome(wheel=None, requires=tuple(str(requirement) for requirement in note["requires"]))
        path = folder / note["file"]
        # The check of the name keeps a damaged note from leading to a file outside this folder.
        sound = values.wheel_file(note["file"]) is None and _digest(path) == note["sha256"]
        return Outcome(wheel=path, cxx11_abi=note["cxx11_abi"]) if sound else None
    # A damaged entry counts as missing, so the wheel is built again.
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(cache: Path, key: str, outcome: Outcome) -> Outcome:
    """Store the outcome of a build and a copy of its wheel in the cache; return the stored outcome.

    Raises:
        EnvironmentProblem: the disk is full, or the cache cannot be written.
    """
    above = BUILT_WHEELS.at(cache)
    note: dict[str, Any] = {"schema": _SCHEMA, "file": None, "requires": list(outcome.requires)}
    with store.translated(above), BUILT_WHEELS.fresh(cache) as folder:
        if outcome.wheel is not None:
            path = folder / outcome.wheel.name
            path.write_bytes(outcome.wheel.read_bytes())
            note |= {"file": path.name, "sha256": _digest(path), "cxx11_abi": outcome.cxx11_abi}
        (folder / _NOTE).write_text(json.dumps(note), encoding="utf-8")
        if find(cache, key) is None:
            # rename(2) replaces only an empty folder, so a damaged entry is removed first.
            store.remove_tree(above / key)
            _rename(folder, above / key)
    stored = find(cache, key)
    assert stored is not None
    return stored


def wheels_of(lock: Lock, cache: Path) -> Mapping[str, Path]:
    """Return the files of the wheels that were built from source, by SHA-256.

    Raises:
        LockError: one is not in the cache.
    """
    keys = {source.name: source.key for source in lock.sources}
    files = {}
    for wheel in lock.wheels:
        if wheel.source == BUILT:
            path = path_of(wheel, keys.get(wheel.name), cache)
            if path is None:
                raise LockError(
                    f"{wheel.file}, which was built from source, is not in the cache",
                    hint="envkit build builds it again",
                )
            files[wheel.sha256] = path
    return files


def context_files(lock: Lock, cache: Path) -> dict[str, bytes]:
    """Return the wheels that were built from source as files of a build context.

    Raises:
        LockError: one is not in the cache.
    """
    return {f"{CONTEXT}/{path.name}": path.read_bytes() for path in wheels_of(lock, cache).values()}


def path_of(wheel: Wheel, key: str | None, cache: Path) -> Path | None:
    """Return the file of a wheel that was built under a key, None if it is missing or has another SHA-256."""
    # No entry is named `-`: keys are hex digits.
    path = BUILT_WHEELS.at(cache, key or "-", wheel.file)
    with contextlib.suppress(OSError):
        if path.stat().st_size == wheel.size and _digest(path) == wheel.sha256:
            return path
    return None


def _rename(folder: Path, final: Path) -> None:
    """Rename a finished folder, unless another process was faster: then `keep` returns the other one's outcome."""
    try:
        folder.rename(final)
    except OSError as error:
        # rename(2): for a folder that is not empty, the error number depends on the file system.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
