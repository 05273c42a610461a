"""Small JSON files that save reading what they describe. A damaged or missing one is made again from its source."""

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
    """Return the value that was kept under this name; None where it is missing or damaged."""
    try:
        # A pipe of that name must not block the opening.
        descriptor = os.open(folder / f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            # The check inside detects damage, not another user's forgery.
            if os.fstat(descriptor).st_uid != os.geteuid():
                return None
            tree = json.loads(stream.read())
        sound = tree["check"] == _check(tree) and (tree["schema"], tree["name"]) == (schema, name)
        return tree["says"] if sound else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, name: str, schema: str, says: object) -> None:
    """Keep a value where the folder can be written."""
    tree = {"schema": schema, "name": name, "says": says}
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(folder / f"{name}.json", durable=False) as stream:
            stream.write(_canonical({**tree, "check": _check(tree)}))


def _check(tree: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in tree.items() if key != "check"}
    return hashlib.sha256(_canonical(rest)).hexdigest()


def _canonical(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
