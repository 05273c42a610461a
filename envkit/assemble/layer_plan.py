"""What goes into which layer, and which package has a path that several hold. Pure.

As with installers, the last package wins: wheels in the order of installation, conda packages in the order of the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from envkit.assemble.conda_package import FOLDER, LINK, Path
from envkit.assemble.layer import parents
from envkit.ground.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

ALONE_FROM = 4 << 20  # bytes; a package of this size is worth a layer of its own
SHARED = 8  # layers at most for the small packages
_NAMED = 20  # groups that are listed; of the rest there is a count

Contents = Mapping[str, str | None]
"""The contents of files by path; equal contents have equal text, None is equal to nothing."""


class Package(Protocol):
    """What the grouping looks at."""

    @property
    def name(self) -> str:
        """The normalized name."""

    @property
    def size(self) -> int:
        """Bytes to download."""


P = TypeVar("P", bound=Package)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """The conda packages that leave paths to later ones."""

    left_out: Mapping[str, frozenset[str]]  # package -> paths that a later package holds, too
    clobbered: tuple[tuple[str, tuple[str, ...]], ...]  # paths with different contents, and their packages in order


def groups(packages: Sequence[P], budget: int) -> tuple[tuple[P, ...], ...]:
    """Return the packages of each layer, from the bottom up, in at most `budget` layers; names differ.

    Large packages are alone, the largest at the bottom: they change rarely, and what lies above a changed layer has
    to be unpacked again. A small package belongs to the layer that its name selects, so a new version of it, or
    another package beside it, leaves the other layers as they are.

    Raises:
        UsageError: `budget` is less than one layer.
    """
    if not packages:
        return ()
    if budget < 1:
        raise UsageError(f"{budget} layers are left for packages", hint="use a base image with fewer layers")
    shared = min(SHARED, budget)
    ranked = sorted(packages, key=lambda package: (-package.size, package.name))
    large = [package for package in ranked if package.size >= ALONE_FROM][: budget - shared]
    alone = {package.name for package in large}
    buckets: dict[int, list[P]] = {}
    for package in sorted(ranked, key=lambda package: package.name):
        if package.name not in alone:
            buckets.setdefault(_bucket(package.name, shared), []).append(package)
    return (*((package,) for package in large), *(tuple(buckets[index]) for index in sorted(buckets)))


def overlaps(trees: Sequence[tuple[str, tuple[Path, ...]]]) -> Overlaps:
    """Decide all overlaps of conda packages (name and paths), which are in the order of the lock.

    Raises:
        IntegrityError: a file or link of one package is where another needs a folder.
    """
    holders: dict[str, list[tuple[str, Path]]] = {}
    for name, paths in trees:
        for path in paths:
            if path.kind != FOLDER:
                holders.setdefault(path.path, []).append((name, path))
    _refuse_clashes(trees, holders)
    left_out: dict[str, set[str]] = {}
    clobbered = []
    for shared_path, rows in sorted((file_path, rows) for file_path, rows in holders.items() if len(rows) > 1):
        for name, _ in rows[:-1]:
            left_out.setdefault(name, set()).add(shared_path)
        if len({(path.kind, path.content) for _, path in rows}) > 1 or rows[-1][1].content is None:
            clobbered.append((shared_path, tuple(name for name, _ in rows)))
    return Overlaps(left_out={name: frozenset(paths) for name, paths in left_out.items()}, clobbered=tuple(clobbered))


def clobbered(packages: Sequence[tuple[str, Contents]]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return packages that hold the same paths with different contents, in the given order, and these paths; sorted."""
    holders: dict[str, list[int]] = {}
    for number, (_, files) in enumerate(packages):
        for path in files:
            holders.setdefault(path, []).append(number)
    paths: dict[tuple[int, ...], list[str]] = {}
    for path, places in holders.items():
        if len(places) > 1:
            seen = {packages[index][1][path] for index in places}
            if len(seen) > 1 or None in seen:
                paths.setdefault(tuple(places), []).append(path)
    return tuple(
        (tuple(packages[index][0] for index in places), tuple(sorted(paths[places]))) for places in sorted(paths)
    )


def report_clobbered(packages: Sequence[tuple[str, Contents]], reporter: Reporter) -> None:
    """Name the packages whose files others replace."""
    rows = clobbered(packages)
    for names, paths in rows[:_NAMED]:
        more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
        both = "both" if len(names) == 2 else "all"  # noqa: PLR2004 - a pair
        reporter.note(f"{' and '.join(names)} {both} hold /{paths[0]}{more}; the image has what {names[-1]} brings")
    if len(rows) > _NAMED:
        reporter.note(f"{len(rows) - _NAMED} more groups of packages hold the same files")


def _bucket(name: str, count: int) -> int:
    # Not `hash`, which gives another number in every process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % count


def _refuse_clashes(
    trees: Sequence[tuple[str, tuple[Path, ...]]], holders: Mapping[str, Sequence[tuple[str, Path]]]
) -> None:
    folders = parents(f"{path.path}/" if path.kind == FOLDER else path.path for _, paths in trees for path in paths)
    clash = min(folders & holders.keys(), default=None)
    if clash is None:
        return
    name, path = holders[clash][0]
    below = f"{clash}/"
    others = [
        other
        for other, paths in trees
        if any(row.path.startswith(below) or (row.path == clash and row.kind == FOLDER) for row in paths)
    ]
    what = "a symbolic link" if path.kind == LINK else "a file"
    if others == [name]:
        raise IntegrityError(
            f"{clash} is {what} and a folder of the conda package {name}",
            hint=f"envkit lock --update {name} takes another build of it",
        )
    raise IntegrityError(
        f"{clash} is {what} of the conda package {name} and a folder of {', '.join(others)}",
        hint=f"leave {name} or {others[0]} out, or take another build: envkit lock --update {name}",
    )
