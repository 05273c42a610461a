"""Tags of an image: a readable one per cell, and a hash of plan and lock by which an existing image is found."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH = 12  # hex digits (48 bits): a million images in one repository collide with a probability of about 0.2 %
_LONGEST = 128  # characters; the limit for a tag in the OCI distribution specification
_MARK = 8  # hex digits that keep shortened names unique


def hash_tag(plan: str, lock: str | None, further: Sequence[str] = ()) -> str:
    """Return the tag that identifies the contents: the first digits of a SHA-256 over the digests of plan and lock.

    Args:
        plan: the plan's digest.
        lock: the lock's digest; None if the build itself solves.
        further: anything else that changes the bytes of this image, such as `--label`; usually empty.
    """
    contents = json.dumps([plan, lock, *further], separators=(",", ":"))
    return hashlib.sha256(contents.encode()).hexdigest()[:_LENGTH]


def cell_name(definition: str, axes: Sequence[tuple[str, str]]) -> str:
    """Return a valid tag such as `train-python3.11-torch2.7`.

    Only the last component of a path or image is used, and invalid characters are replaced, so the names of different
    cells may be equal; see `marked`.
    """
    shown = ((key, "" if value == "true" else value.removesuffix(".*").rpartition("/")[2]) for key, value in axes)
    words = (definition, *(f"{key}{value}" for key, value in shown))
    # A tag has letters, digits and `._-`, and begins with a letter, a digit or `_`.
    name = "-".join(re.sub(r"[^a-z0-9._]+", "_", word.lower()).strip("_.-") for word in words).strip("_.-")
    return (name or "image") if len(name) <= _LONGEST else marked(name, definition, axes)


def marked(name: str, definition: str, axes: Sequence[tuple[str, str]]) -> str:
    """Return the name with a hash of the cell as a suffix, which makes it unique and independent of other cells."""
    mark = hashlib.sha256(json.dumps([definition, *map(list, axes)]).encode()).hexdigest()[:_MARK]
    return f"{name[: _LONGEST - _MARK - 1]}-{mark}"
