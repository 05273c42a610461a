"""The wheels of torchvision, torchaudio and others that fit a build: files that an index is known to have."""

from __future__ import annotations

from functools import lru_cache

from envkit.facts.model import PYPI, ROOT, Build, Companion, folder_of
from envkit.ground.versions import Constraint, key, major, parse_constraint
from envkit.resolve.index import WHEEL_SOURCES, Index

COMPANIONS = ("torchvision", "torchaudio")
"""The packages that an answer names beside torch, the most wanted first."""
COMPANION_PACKAGES = (*COMPANIONS, "torchtext", "torchcodec")
"""The packages that a request may name beside torch."""


def companion(
    build: Build, name: str, python: str | None, index: Index, wanted: Constraint | None = None
) -> Companion | None:
    """Return the wheel of a package for a build and a Python (None: for any); None if no index is known to have one.

    The release that upstream names for this torch is preferred to the newest that fits.
    """
    return next(iter(companions(build, name, python, index, wanted)), None)


def companions(
    build: Build, name: str, python: str | None, index: Index, wanted: Constraint | None = None
) -> list[Companion]:
    """Return the wheels of a package that fit a build and a Python, the preferred one first."""
    if build.source not in WHEEL_SOURCES:
        return []
    release = index.facts.releases.get(build.torch)
    paired = getattr(release, name, None)
    fits = [
        row
        for row in _listed(build, name, index)
        if (python is None or python in row.pythons)
        and (wanted is None or wanted.allows(row.version))
        and _allows(row.torch, build.torch)
        and runs_beside(row, build.cuda)
    ]
    # A file of the folder itself before one of the root with the same version, as the more exact name.
    return sorted(fits, key=lambda row: (row.version == paired, key(row.version), row.index != ROOT), reverse=True)


def runs_beside(row: Companion, cuda: str | None) -> bool:
    """Return whether a wheel works with a torch for a CUDA version, compared as the package itself compares it."""
    return row.torch_cuda is None or (cuda is not None and row.torch_cuda in (cuda, str(major(cuda))))


def other_cuda(build: Build, name: str, index: Index) -> Companion | None:
    """Return the wheel that would fit a build but for its CUDA; None if there is none."""
    if build.source not in WHEEL_SOURCES:
        return None
    rows = [
        row for row in _listed(build, name, index)
        if _allows(row.torch, build.torch) and not runs_beside(row, build.cuda)
    ]  # fmt: skip
    return max(rows, key=lambda row: key(row.version), default=None)


def mismatch(build: Build, name: str, version: str, index: Index) -> Companion | None:
    """Return the wheel of a version that does not work beside a build; None if one works, or none is known."""
    if build.source not in WHEEL_SOURCES:
        return None
    rows = [row for row in _listed(build, name, index) if row.version == version]
    works = any(_allows(row.torch, build.torch) and runs_beside(row, build.cuda) for row in rows)
    return None if works else next(iter(rows), None)


def conda_version(build: Build, name: str) -> str | None:
    """Return the version of a conda build's companion; None if unknown, and for wheels."""
    version: str | None = getattr(build, name, None)
    return None if build.source in WHEEL_SOURCES else version


def paired(torch: str, name: str, index: Index) -> tuple[str, ...]:
    """Return the versions of a package that are made for a torch, whichever index has a file of them."""
    rows = (row for row in index.facts.companions if row.package == name and _allows(row.torch, torch))
    return tuple(sorted({row.version for row in rows}, key=key))


def _listed(build: Build, name: str, index: Index) -> list[Companion]:
    """Return what the index of a build lists for its platform."""
    pages = (PYPI,) if build.source == PYPI else (folder_of(build.cuda), ROOT)
    return [row for page in pages for row in index.companions.get((name, page, build.platform), ())]


@lru_cache(maxsize=256)
def _parsed(text: str) -> Constraint:
    return parse_constraint(text, "companions")


def _allows(constraint: str, torch: str) -> bool:
    return _parsed(constraint).allows(torch)


def left_out(build: Build, name: str, python: str, index: Index) -> str:
    """Return why no wheel of a package fits a build and a Python: the end of a sentence that starts with its name."""
    other = next(iter(companions(build, name, None, index)), None)
    if other is not None:
        release = index.facts.releases.get(build.torch)
        paired = f", the release for torch {build.torch}," if getattr(release, name, None) == other.version else ""
        return f"{other.version}{paired} has no wheel for Python {python} on {build.platform} and is left out"
    elsewhere = fitting_cudas(build, name, index)
    where = "" if not elsewhere else f"; for torch {build.torch} there is one with {', '.join(elsewhere)}"
    wrong = other_cuda(build, name, index)
    if wrong is not None:
        beside = f"CUDA {build.cuda}" if build.cuda else "no CUDA"
        return (
            f"{wrong.version} on {_place(build)} is compiled for CUDA {wrong.cuda}, torch {build.torch} there for "
            f"{beside}: it is left out{where}"
        )
    return f"is left out: no file of it is known for torch {build.torch} on {_place(build)}, {build.platform}{where}"


def fitting_cudas(build: Build, name: str, index: Index) -> tuple[str, ...]:
    """Return the flags of the CUDA versions for which wheels of the same torch and platform have a package's wheel.

    Those of another source than the build's have its flag, too.
    """
    others = [
        row for row in index.facts.builds
        if (row.torch, row.platform) == (build.torch, build.platform) and row.source in WHEEL_SOURCES
        and row.cuda is not None and build.cuda is not None and companion(row, name, None, index) is not None
    ]  # fmt: skip
    same = {row.cuda for row in others if row.cuda and row.source == build.source}
    there = same or {row.cuda for row in others if row.cuda}
    source = "" if same or not there else f"--source {others[0].source} "
    return tuple(f"{source}--cuda {cuda}" for cuda in sorted(there, key=key, reverse=True))


def _place(build: Build) -> str:
    return "the Python index" if build.source == PYPI else f"the index {folder_of(build.cuda)}"
