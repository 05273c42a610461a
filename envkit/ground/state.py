"""What envkit remembers between runs: the image built last. `envkit verify` without IMAGE reads it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import UsageError
from envkit.ground.store import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

SCHEMA = "envkit.last/1"
NAME = "last.json"
RECORDS = "records"
"""Folder of one file for each verification, named by the time at which it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBuilt:
    """The image built last on this machine."""

    image: str  # the engine's image id, 'sha256:...'
    tags: tuple[str, ...]
    plan: str  # the plan's digest; the plan itself is in the plan store
    engine: str  # 'docker' | 'buildkit' | 'podman'
    built: str  # RFC 3339, UTC


def write_last(folder: Path, last: LastBuilt) -> Path:
    """Note in the state folder what was built; returns the file.

    Raises:
        OSError: the folder cannot be written.
    """
    tree = {
        "schema": SCHEMA,
        "image": last.image,
        "tags": list(last.tags),
        "plan": last.plan,
        "engine": last.engine,
        "built": last.built,
    }
    path = folder / NAME
    write_atomic(path, json.dumps(tree, indent=2).encode() + b"\n")
    return path


def read_last(folder: Path, *, command: str = "verify") -> LastBuilt:
    """The image built last; `command` is the one that asks, for the hint.

    Raises:
        UsageError: nothing was built here yet, or the note is damaged.
    """
    path = folder / NAME
    hint = f"envkit build, or name the image: envkit {command} IMAGE"
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no image was built here yet ({path} does not exist)", hint=hint) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint=hint) from error
    last = _last(tree)
    if last is None:
        raise UsageError(f"{path} is not a record of the last build ({SCHEMA})", hint=hint)
    return last


def own_layout(folder: Path, name: str) -> Path:
    """Return the OCI layout in the state folder for an image that the embedded engine builds as `name`.

    Names that differ only in characters other than letters, digits, dots, hyphens and underscores share one.
    """
    return folder / "images" / re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def records_of(folder: Path, ids: Collection[str]) -> Iterator[Path]:
    """Yield the kept records that judge one of these images, newest first. One that cannot be read judges none."""
    for path in sorted((folder / RECORDS).glob("*.json"), reverse=True):
        try:
            subject = json.loads(path.read_bytes()).get("subject")
        except (OSError, ValueError, RecursionError, AttributeError):
            continue
        if isinstance(subject, dict) and subject.get("id") in ids:
            yield path


def verified_images(folder: Path, most: int) -> Iterator[str]:
    """Yield the names of images that were verified here, as they were typed, from the `most` newest records."""
    for path in sorted((folder / RECORDS).glob("*.json"), reverse=True)[:most]:
        try:
            name = json.loads(path.read_bytes())["subject"]["image"]
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            continue
        if isinstance(name, str):
            yield name


def _last(tree: Any) -> LastBuilt | None:
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        return None
    tags = tree.get("tags")
    texts = [tree.get(name) for name in ("image", "plan", "engine", "built")]
    if not isinstance(tags, list) or not all(isinstance(item, str) for item in (*tags, *texts)):
        return None
    return LastBuilt(
        image=tree["image"], tags=tuple(tags), plan=tree["plan"], engine=tree["engine"], built=tree["built"]
    )
