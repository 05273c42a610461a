"""`oci:DIR[:TAG]`, `oci:DIR@DIGEST` and `docker-archive:FILE[:TAG]`: images that are files, not an engine's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LAYOUT, ARCHIVE = "oci", "docker-archive"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """Where an image lies and which one of that place is meant."""

    kind: str  # LAYOUT or ARCHIVE
    path: Path
    tag: str | None = None
    digest: str | None = None  # of the manifest

    def __str__(self) -> str:
        """The reference as it is typed."""
        chosen = f":{self.tag}" if self.tag else f"@{self.digest}" if self.digest else ""
        return f"{self.kind}:{self.path}{chosen}"


def is_file_reference(text: str) -> bool:
    """Whether a reference names a file or a folder instead of an engine's image."""
    return text.startswith((f"{LAYOUT}:", f"{ARCHIVE}:"))


def is_digest(text: object) -> bool:
    """Whether a value is a SHA-256 digest as images write it."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> FileReference | None:
    """A reference of one of the two kinds, None for any other text.

    A path that exists is taken whole, so that a colon in a folder's name is not read as a tag.
    """
    kind, sign, rest = text.partition(":")
    if not sign or kind not in (LAYOUT, ARCHIVE) or not rest:
        return None
    if Path(rest).exists():
        return FileReference(kind=kind, path=Path(rest))
    path, at, digest = rest.rpartition("@")
    if at and path and is_digest(digest):
        return FileReference(kind=kind, path=Path(path), digest=digest)
    # A tag may hold a colon of its own (a full name, registry:port and all), so the shortest path that exists wins.
    for place in (match.start() for match in re.finditer(":", rest)):
        if place and Path(rest[:place]).exists():
            return FileReference(kind=kind, path=Path(rest[:place]), tag=rest[place + 1 :])
    return FileReference(kind=kind, path=Path(rest))
