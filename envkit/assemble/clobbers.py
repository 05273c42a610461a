"""Files that several packages hold: the last of them has its way, as with pip, and the user is told.

What a wheel holds is noted when its layer is made, so a build that finds the layer in the cache can compare, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble import notes
from envkit.assemble.model import File, Slice, Tree
from envkit.image.deflate import crc32

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

_SCHEMA = "envkit.wheel-listing/1"
_NAMED = 20

Contents = Mapping[str, str | None]
"""The contents of files by path; equal contents have equal text, None is equal to nothing."""


def contents(tree: Tree) -> dict[str, str | None]:
    """What a package leaves in the image."""
    return {file.path: _contents(file) for file in tree.files}


def read(folder: Path, key: str) -> Contents | None:
    """What was noted of a package; None where nothing was."""
    tree = notes.read(folder, key, _SCHEMA)
    return tree if isinstance(tree, dict) else None


def write(folder: Path, key: str, tree: Tree) -> None:
    """Note what a package holds."""
    notes.write(folder, key, _SCHEMA, contents(tree))


def clobbered(packages: Sequence[tuple[str, Contents]]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Packages that hold the same paths with different contents, in the order given, and these paths; sorted."""
    holders: dict[str, list[int]] = {}
    for place, (_, files) in enumerate(packages):
        for path in files:
            holders.setdefault(path, []).append(place)
    found: dict[tuple[int, ...], list[str]] = {}
    for path, places in holders.items():
        if len(places) > 1:
            seen = {packages[place][1][path] for place in places}
            if len(seen) > 1 or None in seen:
                found.setdefault(tuple(places), []).append(path)
    return tuple(
        (tuple(packages[place][0] for place in places), tuple(sorted(found[places]))) for places in sorted(found)
    )


def tell(packages: Sequence[tuple[str, Contents]], reporter: Reporter) -> None:
    """Name the packages whose files others have replaced."""
    rows = clobbered(packages)
    for names, paths in rows[:_NAMED]:
        more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
        both = "both" if len(names) == 2 else "all"  # noqa: PLR2004 - a pair
        reporter.note(f"{' and '.join(names)} {both} hold /{paths[0]}{more}; the image has what {names[-1]} brings")
    if len(rows) > _NAMED:
        reporter.note(f"{len(rows) - _NAMED} more groups of packages hold the same files")


def _contents(file: File) -> str:
    parts = (f"{part.crc:08x}" if isinstance(part, Slice) else f"{crc32(part):08x}" for part in file.parts)
    return f"{file.size} {int(file.executable)} {' '.join(parts)}"
