"""Names of images: a cell's own name for people, and a hash of plan and lock to look an existing image up."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH = 12  # hex digits: 48 bits, so that among a million images of one repository two are hardly ever equal
_LONGEST = 128  # characters of a tag
_MARK = 8  # hex digits that keep cut names apart


def hash_tag(plan: str, lock: str | None, further: Sequence[str] = ()) -> str:
    """Return the tag that identifies the contents: the first digits of a SHA-256 over the digests of plan and lock.

    Args:
        plan: the plan's digest.
        lock: the lock's digest; None where the build solves by itself.
        further: what else decides the bytes of this image, such as labels that were typed; nothing in the usual case.
    """
    contents = json.dumps([plan, lock, *further], separators=(",", ":"))
    return hashlib.sha256(contents.encode()).hexdigest()[:_LENGTH]


def cell_name(definition: str, axes: Sequence[tuple[str, str]]) -> str:
    """`train-python3.11-torch2.7`: a tag that any registry takes.

    Of paths and images it has the last part, and not every character; names of different cells may be equal.
    """
    shown = ((key, "" if value == "true" else value.removesuffix(".*").rpartition("/")[2]) for key, value in axes)
    words = (definition, *(f"{key}{value}" for key, value in shown))
    name = "-".join(re.sub(r"[^a-z0-9._]+", "_", word.lower()).strip("_.-") for word in words).strip("_.-")
    return (name or "image") if len(name) <= _LONGEST else marked(name, definition, axes)


def marked(name: str, definition: str, axes: Sequence[tuple[str, str]]) -> str:
    """The name with a mark that no other cell has, whichever cells there are."""
    mark = hashlib.sha256(json.dumps([definition, *map(list, axes)]).encode()).hexdigest()[:_MARK]
    return f"{name[: _LONGEST - _MARK - 1]}-{mark}"
