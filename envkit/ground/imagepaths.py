"""Which paths a file of an image may have: the one rule for wheels, conda packages, own files and bases.

A layer is a tar in which a name that begins with `.wh.` removes what lies below it. A package that brings such a name
would delete the files of other packages, so no part of a path may begin with it.
Source: OCI image specification 1.1, "Image Layer Filesystem Changeset", Whiteouts.
"""

from __future__ import annotations

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
LONGEST_PATH = 3800
"""Bytes of a path in an image: the kernel takes 4095, and the folder into which a runtime unpacks counts."""
LONGEST_NAME = 255
"""Bytes of one part of a path, as file systems have it."""
_LONGEST_IN_PACKAGE = LONGEST_PATH - 256  # the folder of an environment comes before it
_DEEPEST = 64  # parts; every folder above a file is an entry of the layer, so their number is the cost of a file


def fault(path: str) -> str | None:
    """Return why a file of a package or base cannot have this relative path; None where it can."""
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
        return f"{path!r:.200} has a name that begins with {WHITEOUT}, which deletes other files in a layer"
    return None


def is_reserved(path: str) -> bool:
    """Whether a part of the path is one that readers of layers take for a whiteout."""
    return any(part.startswith(WHITEOUT) for part in path.split("/"))
