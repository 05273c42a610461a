"""Assign packages to layers, and paths of several packages to one of them. Pure.

The last package wins, as with installers: wheels in the order of installation, conda packages in the order of the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from envkit.assemble.conda_package import FOLDER, LINK, Path
from envkit.assemble.layer import parents
from envkit.ground.errors import IntegrityError, UsageError
from envkit.ground.progress import counted

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

ALONE_FROM = 4 << 20  # bytes; packages from this size on get their own layer
SHARED = 8  # maximum number of layers for the small packages
_NAMED = 20  # groups that are reported one by one; the rest is counted

Contents = Mapping[str, str | None]
"""Fingerprints of files by path. Equal texts mean equal contents; None counts as different from everything."""


class Package(Protocol):
    """The properties of a package that the grouping uses."""

    @property
    def name(self) -> str:
        """The normalized name."""

    @property
    def size(self) -> int:
        """Bytes to download."""


P = TypeVar("P", bound=Package)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """Paths that several conda packages have."""

    left_out: Mapping[str, frozenset[str]]  # package -> its paths that a later package also has
    clobbered: tuple[tuple[str, tuple[str, ...]], ...]  # paths with different contents, and their packages in order


def groups(packages: Sequence[P], budget: int) -> tuple[tuple[P, ...], ...]:
    """Return the packages of each layer, from the bottom up, in at most `budget` layers; package names are unique.

    Large packages get their own layers, the largest at the bottom: they change rarely, and all layers above a changed
    one have to be unpacked again. The layer of a small package depends only on its name, so a new version of it or an
    additional package leaves the other layers unchanged.

    Raises:
        UsageError: `budget` is less than one layer.
    """
    if not packages:
        return ()
    if budget < 1:
        raise UsageError(f"{budget} layers are left for packages", hint="use a base image with fewer layers")
    shared = min(SHARED, budget)
    ranked = sorted(packages, key=lambda package: (-package.size, package.name))
    # The small packages have their layers first; large ones beyond the budget are added to them.
    large = [package for package in ranked if package.size >= ALONE_FROM][: budget - shared]
    alone = {package.name for package in large}
    buckets: dict[int, list[P]] = {}
    for package in sorted(ranked, key=lambda package: package.name):
        if package.name not in alone:
            buckets.setdefault(_bucket(package.name, shared), []).append(package)
    return (*((package,) for package in large), *(tuple(buckets[index]) for index in sorted(buckets)))


def overlaps(trees: Sequence[tuple[str, tuple[Path, ...]]]) -> Overlaps:
    """Resolve the overlaps of conda packages (name and paths), given in the order of the lock.

    Raises:
        IntegrityError: a path is a file or link of one package and a folder of another.
    """
    owners: dict[str, list[tuple[str, Path]]] = {}
    for name, paths in trees:
        for path in paths:
            if path.kind != FOLDER:
                owners.setdefault(path.path, []).append((name, path))
    _refuse_clashes(trees, owners)
    left_out: dict[str, set[str]] = {}
    clobbered = []
    for shared_path, rows in sorted((file_path, rows) for file_path, rows in owners.items() if len(rows) > 1):
        for name, _ in rows[:-1]:
            left_out.setdefault(name, set()).add(shared_path)
        if len({(path.kind, path.content) for _, path in rows}) > 1 or rows[-1][1].content is None:
            clobbered.append((shared_path, tuple(name for name, _ in rows)))
    return Overlaps(left_out={name: frozenset(paths) for name, paths in left_out.items()}, clobbered=tuple(clobbered))


def clobbered(packages: Sequence[tuple[str, Contents]]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return groups of packages with the same paths but different contents, and these paths.

    Packages of a group keep their order; groups and paths are sorted.
    """
    owners: dict[str, list[int]] = {}
    for number, (_, files) in enumerate(packages):
        for path in files:
            owners.setdefault(path, []).append(number)
    paths: dict[tuple[int, ...], list[str]] = {}
    for path, indexes in owners.items():
        if len(indexes) > 1:
            seen = {packages[index][1][path] for index in indexes}
            if len(seen) > 1 or None in seen:
                paths.setdefault(tuple(indexes), []).append(path)
    return tuple(
        (tuple(packages[index][0] for index in indexes), tuple(sorted(paths[indexes]))) for indexes in sorted(paths)
    )


def report_clobbered(packages: Sequence[tuple[str, Contents]], reporter: Reporter) -> None:
    """Report the packages whose files are replaced by those of others."""
    rows = clobbered(packages)
    for names, paths in rows[:_NAMED]:
        more = f" and {counted(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
        files = "files" if len(paths) > 1 else "file"
        both = "both" if len(names) == 2 else "all"  # noqa: PLR2004 - a pair
        reporter.note(
            f"{' and '.join(names)} {both} contain /{paths[0]}{more}; the image has the {files} of {names[-1]}"
        )
    if len(rows) > _NAMED:
        reporter.note(f"{len(rows) - _NAMED} more groups of packages contain the same files")


def _bucket(name: str, count: int) -> int:
    # Not `hash`, whose result differs between processes.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % count


def _refuse_clashes(
    trees: Sequence[tuple[str, tuple[Path, ...]]], owners: Mapping[str, Sequence[tuple[str, Path]]]
) -> None:
    folders = parents(f"{path.path}/" if path.kind == FOLDER else path.path for _, paths in trees for path in paths)
    clash = min(folders & owners.keys(), default=None)
    if clash is None:
        return
    name, path = owners[clash][0]
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
        hint=f"remove {name} or {others[0]}, or try another build: envkit lock --update {name}",
    )
