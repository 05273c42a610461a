"""Paths that several conda packages hold: the last of the lock has them, and nothing may lie below a link. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envkit.assemble.conda_listing import FOLDER, LINK, Path
from envkit.assemble.stack import parents
from envkit.ground.errors import IntegrityError


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """Who does without what."""

    left_out: Mapping[str, frozenset[str]]  # package -> paths that a later package holds, too
    clobbered: tuple[tuple[str, tuple[str, ...]], ...]  # paths with different contents, and their packages in order


def overlaps(trees: Sequence[tuple[str, tuple[Path, ...]]]) -> Overlaps:
    """Decide all overlaps of the packages (name and paths), which are in the order of the lock.

    Raises:
        IntegrityError: a file or link of one package is where another needs a folder.
    """
    holders: dict[str, list[tuple[str, Path]]] = {}
    for name, paths in trees:
        for one in paths:
            if one.kind != FOLDER:
                holders.setdefault(one.path, []).append((name, one))
    _refuse_clashes(trees, holders)
    left_out: dict[str, set[str]] = {}
    clobbered = []
    for path, rows in sorted((path, rows) for path, rows in holders.items() if len(rows) > 1):
        for name, _ in rows[:-1]:
            left_out.setdefault(name, set()).add(path)
        if len({(one.kind, one.content) for _, one in rows}) > 1 or rows[-1][1].content is None:
            clobbered.append((path, tuple(name for name, _ in rows)))
    return Overlaps(left_out={name: frozenset(paths) for name, paths in left_out.items()}, clobbered=tuple(clobbered))


def _refuse_clashes(
    trees: Sequence[tuple[str, tuple[Path, ...]]], holders: Mapping[str, Sequence[tuple[str, Path]]]
) -> None:
    folders = parents(f"{one.path}/" if one.kind == FOLDER else one.path for _, paths in trees for one in paths)
    clash = min(folders & holders.keys(), default=None)
    if clash is None:
        return
    name, one = holders[clash][0]
    below = f"{clash}/"
    others = [
        other
        for other, paths in trees
        if any(row.path.startswith(below) or (row.path == clash and row.kind == FOLDER) for row in paths)
    ]
    what = "a symbolic link" if one.kind == LINK else "a file"
    if others == [name]:
        raise IntegrityError(
            f"{clash} is {what} and a folder of the conda package {name}",
            hint=f"envkit lock --update {name} takes another build of it",
        )
    raise IntegrityError(
        f"{clash} is {what} of the conda package {name} and a folder of {', '.join(others)}",
        hint=f"leave {name} or {others[0]} out, or take another build: envkit lock --update {name}",
    )
