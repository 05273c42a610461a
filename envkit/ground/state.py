"""The state between runs: the images that were built, and the records.

`envkit verify` and `envkit run` without IMAGE use the image that was built last.
"""

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
OWN_IMAGES = "images"
"""Folder with the layouts of images that were pushed or built without --output."""
RECORDS = "records"
"""Folder with one file for each verification, named by its start time."""
PROJECTS = "projects"
"""Folder with one file for each image that was built for a project and verified, named by what it is made from."""
BUILT = "built"
"""Folder with one file for each image that was built, named by the digits of its ID."""
_KEPT = 1000  # files of one folder
_ID = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBuilt:
    """The last image that was built on this machine."""

    image: str  # the engine's image ID, 'sha256:...', or its place, 'oci:DIR'
    tags: tuple[str, ...]
    plan: str  # the plan's digest; the plan itself is in the plan store
    engine: str  # 'docker' | 'buildkit' | 'podman'
    built: str  # RFC 3339, UTC
    id: str = ""  # the image ID; a place may hold another image by now


def write_last(folder: Path, last: LastBuilt) -> Path:
    """Write to the state folder what was built; return the file.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / NAME
    write_atomic(path, _data(last))
    return path


def write_project(folder: Path, key: str, built: LastBuilt) -> None:
    """Write to the state folder which image is made from the inputs with this key.

    Raises:
        OSError: the folder cannot be written.
    """
    write_atomic(folder / PROJECTS / key, _data(built))
    _keep_newest(folder / PROJECTS)


def read_project(folder: Path, key: str) -> LastBuilt | None:
    """Return the image that `write_project` noted for a key; None without one, or if the file is damaged."""
    try:
        return _last(json.loads((folder / PROJECTS / key).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def _data(built: LastBuilt) -> bytes:
    tree = {
        "schema": SCHEMA,
        "image": built.image,
        "tags": list(built.tags),
        "plan": built.plan,
        "engine": built.engine,
        "built": built.built,
        "id": built.id,
    }
    return json.dumps(tree, indent=2).encode() + b"\n"


def write_built(folder: Path, ids: Collection[str]) -> None:
    """Write to the state folder that an image was built here; `ids` are its IDs, other texts are ignored.

    Raises:
        OSError: the folder cannot be written.
    """
    for match in filter(None, map(_ID.fullmatch, ids)):
        write_atomic(folder / BUILT / match[1], b"")
    _keep_newest(folder / BUILT)


def _keep_newest(folder: Path) -> None:
    for old in sorted(folder.glob("*"), key=_modified, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)


def was_built(folder: Path, ident: str) -> bool:
    """Return whether the image with this ID was built here. A name or tag is no ID, because it can move."""
    match = _ID.fullmatch(ident)
    return match is not None and (folder / BUILT / match[1]).is_file()


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it
        return 0.0


def read_last(folder: Path, *, command: str = "verify") -> LastBuilt:
    """Return the last image that was built; `command` is the calling command, for the hint.

    Raises:
        UsageError: nothing was built here yet, or the file is damaged.
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
    """Return the OCI layout in the state folder for an image that the embedded engine builds under a name.

    Characters other than letters, digits, dots, hyphens and underscores are replaced, so such names can share a layout.
    """
    return folder / OWN_IMAGES / re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def records_of(folder: Path, ids: Collection[str]) -> Iterator[Path]:
    """Yield the records of these images, newest first. Records that cannot be read are skipped."""
    for path in sorted((folder / RECORDS).glob("*.json"), reverse=True):
        try:
            subject = json.loads(path.read_bytes()).get("subject")
        except (OSError, ValueError, RecursionError, AttributeError):
            continue
        if isinstance(subject, dict) and subject.get("id") in ids:
            yield path


def verified_images(folder: Path, most: int) -> Iterator[str]:
    """Yield the names, as typed, of the images in the `most` newest records."""
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
    ident = tree.get("id", "")  # files from before it was noted have none
    if not isinstance(tags, list) or not all(isinstance(item, str) for item in (*tags, *texts, ident)):
        return None
    return LastBuilt(
        image=tree["image"],
        tags=tuple(tags),
        plan=tree["plan"],
        engine=tree["engine"],
        built=tree["built"],
        id=ident,
    )
