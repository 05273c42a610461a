"""A cache of small JSON values that are expensive to compute. A damaged or missing file is written again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envkit.ground.store import replacing


def read(folder: Path, name: str, schema: str) -> Any:
    """Return the value that was written under this name, None if it is missing or damaged."""
    try:
        # O_NONBLOCK: opening a pipe of that name must not block.
        descriptor = os.open(folder / f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            # The checksum inside detects damage, but not a forgery by another user.
            if os.fstat(descriptor).st_uid != os.geteuid():
                return None
            tree = json.loads(stream.read())
        sound = tree["check"] == _check(tree) and (tree["schema"], tree["name"]) == (schema, name)
        return tree["says"] if sound else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, name: str, schema: str, value: object) -> None:
    """Write a value under a name; do nothing if the folder is not writable."""
    tree = {"schema": schema, "name": name, "says": value}
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without fsync: a file that a power failure damages does not match its checksum and is computed again.
        with replacing(folder / f"{name}.json", durable=False) as stream:
            stream.write(_canonical({**tree, "check": _check(tree)}))


def _check(tree: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in tree.items() if key != "check"}
    return hashlib.sha256(_canonical(rest)).hexdigest()


def _canonical(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
