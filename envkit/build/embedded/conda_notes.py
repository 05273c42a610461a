"""What conda packages list, kept by their SHA-256, so that a build whose layers are all there needs no archive.

A note that is damaged or missing costs one look into the archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envkit.build.embedded import conda_listing
from envkit.build.embedded.conda_listing import Listing

_SCHEMA = "envkit.conda-listing/1"


def read(folder: Path, sha256: str) -> Listing | None:
    """The listing of a package, None where it is not there or anything about it is wrong."""
    try:
        descriptor = os.open(folder / f"{sha256}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return None
            tree = json.loads(stream.read())
        if tree["check"] != _check(tree) or (tree["schema"], tree["sha256"]) != (_SCHEMA, sha256):
            return None
        return conda_listing.from_json(tree["listing"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, sha256: str, listing: Listing) -> None:
    """Keep a listing where the folder allows it; it is only ever a shortcut."""
    tree = {"schema": _SCHEMA, "sha256": sha256, "listing": listing.to_json()}
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_canonical({**tree, "check": _check(tree)}))
            Path(name).replace(folder / f"{sha256}.json")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _check(tree: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in tree.items() if key != "check"}
    return hashlib.sha256(_canonical(rest)).hexdigest()


def _canonical(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
