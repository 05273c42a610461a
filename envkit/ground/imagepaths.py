"""Valid paths of files in an image, and whiteouts: paths with which a layer removes files of the layers below.

In the tar of a layer, a name that begins with `.wh.` removes a file of the layers below. A package with such a name
would delete files of other packages, so no part of a path may begin with it.
Source: OCI image specification 1.1, "Image Layer Filesystem Changeset", Whiteouts.
"""

from __future__ import annotations

from dataclasses import dataclass

from envkit.ground.errors import IntegrityError

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_NOTES = ".wh..wh."  # metadata of the file system aufs
RESERVED = f"a name that begins with {_WHITEOUT}, which deletes other files in a layer"
"""Why a path is refused if `is_reserved` is true."""
LONGEST_PATH = 3800
"""Bytes of a path in an image: the kernel's limit is 4095, less the folder into which a runtime unpacks layers."""
LONGEST_NAME = 255
"""Bytes of one part of a path: the limit of Linux file systems."""
_LONGEST_IN_PACKAGE = LONGEST_PATH - 256  # less the folder of an environment
_DEEPEST = 64  # parts; every folder above a file is an entry of the layer, so deep paths are expensive


def fault(path: str) -> str | None:
    """Return why this relative path is refused for a file of a package or base; None if it is fine."""
    encoded = path.encode(errors="replace")
    if len(encoded) > _LONGEST_IN_PACKAGE:
        return f"{path[:60]!r}… has {len(encoded)} bytes; the limit is {_LONGEST_IN_PACKAGE}"
    parts = path.split("/")
    if len(parts) > _DEEPEST:
        return f"{path[:60]!r}… has {len(parts)} parts; the limit is {_DEEPEST}"
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        return f"{path!r:.200} is not a valid path for a file of a package"
    if any(len(part.encode(errors="replace")) > LONGEST_NAME for part in parts):
        return f"{path!r:.200} has a name of more than {LONGEST_NAME} bytes"
    if is_reserved(path):
        return f"{path!r:.200} has {RESERVED}"
    return None


def is_reserved(path: str) -> bool:
    """Return whether a part of the path would be interpreted as a whiteout."""
    return any(part.startswith(_WHITEOUT) for part in path.split("/"))


@dataclass(frozen=True, slots=True)
class Removal:
    """The files of lower layers that an entry of a layer removes."""

    path: str  # relative, without a leading slash; empty: the root
    is_opaque: bool  # whether the path is a folder that stays and only its contents are removed


def removal(path: str) -> Removal | None:
    """Return what a layer's entry with this path removes, None if it is not a whiteout.

    Raises:
        IntegrityError: the whiteout names no file, which some tools interpret as the whole folder.
    """
    folder, _, name = path.rpartition("/")
    if name == _OPAQUE:
        return Removal(folder, is_opaque=True)
    if not name.startswith(_WHITEOUT):
        return None
    removed = name.removeprefix(_WHITEOUT)
    if removed in ("", ".", ".."):
        raise IntegrityError(f"a layer removes a file without a name, below {folder[:200]!r}")
    return Removal(f"{folder}/{removed}" if folder else removed, is_opaque=False)


def is_note(path: str) -> bool:
    """Return whether an entry is metadata of a file system and not a part of the image."""
    name = path.rpartition("/")[2]
    return name.startswith(_NOTES) and name != _OPAQUE
