"""What conda packages list, kept by their SHA-256, so that a build whose layers are all there needs no archive."""

from __future__ import annotations

from pathlib import Path

from envkit.assemble import conda_listing, notes
from envkit.assemble.conda_listing import Listing

_SCHEMA = "envkit.conda-listing/2"


def read(folder: Path, sha256: str) -> Listing | None:
    """The listing of a package, None where it is not there or anything about it is wrong."""
    tree = notes.read(folder, sha256, _SCHEMA)
    try:
        return None if tree is None else conda_listing.from_json(tree)
    except ValueError:
        return None


def write(folder: Path, sha256: str, listing: Listing) -> None:
    """Keep a listing where the folder allows it."""
    notes.write(folder, sha256, _SCHEMA, listing.to_json())
