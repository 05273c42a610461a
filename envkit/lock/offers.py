"""Which wheels there are of a package that has none for an image: for other Pythons, torches and CUDAs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envkit.ground.versions import key, minor
from envkit.lock import abi
from envkit.lock.uv import Target
from envkit.lock.variants import Image, constraints
from envkit.lock.wheel_choice import ranks_of

_INTERPRETER = re.compile(r"cp3(\d+)")
_Wheel = tuple[str, Version, frozenset[Tag]]
"""Name of a file, version and tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Why a package has no wheel for an image, and the option with which it has one."""

    why: str
    option: str  # '--python 3.11'


def other(name: str, wanted: SpecifierSet, files: Iterable[str], target: Target, image: Image) -> Offer | None:
    """Return the change with which one of the files can be installed; None if no such change is known.

    Args:
        name: of the package, normalized.
        wanted: its versions.
        files: the names of all files that the indexes and pages have of it.
        target: the interpreter.
        image: torch, CUDA and ABI.
    """
    wheels = [wheel for wheel in _wheels(name, files) if wanted.contains(wheel[1], prereleases=True)]
    python = minor(target.python)
    fitting = {candidate for candidate in (python, *_pythons(wheels)) if _usable(wheels, target, candidate, image)}
    if python in fitting:
        return None  # the wheel is there; something else is in the way
    if fitting:
        older = [one for one in fitting if key(one) < key(python)]
        best = max(older, key=key) if older else min(fitting, key=key)
        return Offer(
            why=f"{name} has wheels for Python {_listed(fitting)}, and the image has Python {python}",
            option=f"--python {best}",
        )
    return _other_torch(name, wheels, target, image)


def is_usable(name: str, wanted: SpecifierSet, files: Iterable[str], target: Target, image: Image) -> bool:
    """Return whether one of the files is a wheel of a package that can be installed in an image.

    Args:
        name: of the package, normalized.
        wanted: its versions.
        files: names of files.
        target: the interpreter.
        image: torch, CUDA and ABI.
    """
    wheels = [wheel for wheel in _wheels(name, files) if wanted.contains(wheel[1], prereleases=True)]
    return _usable(wheels, target, minor(target.python), image)


def described(name: str, files: Iterable[str]) -> str:
    """Return for which torches, CUDAs and Pythons the files of a page are, as far as their names say."""
    wheels = list(_wheels(name, files))
    claims = [abi.claim_of(str(version)) or abi.claim_of_cuda(str(version)) for _, version, _ in wheels]
    parts = {
        "torch": {claim.torch for claim in claims if claim and claim.torch},
        "CUDA": {claim.cuda for claim in claims if claim and claim.cuda},
        "Python": set(_pythons(wheels)),
    }
    known = [f"{what} {_listed(versions)}" for what, versions in parts.items() if versions]
    return f"wheels for {', '.join(known)}" if known else "no wheel of it" if not wheels else "wheels"


def _other_torch(name: str, wheels: Sequence[_Wheel], target: Target, image: Image) -> Offer | None:
    claims = {claim.torch: claim for _, version, _ in wheels if (claim := abi.claim_of(str(version))) and claim.torch}
    python = minor(target.python)
    torches = [
        torch
        for torch in claims
        if torch and _usable(wheels, target, python, Image(torch=torch, cuda=image.cuda, cxx11_abi=None))
    ]
    if not torches:
        return None
    return Offer(
        why=f"{name} has wheels for torch {_listed(torches)}, and the image has torch {image.torch}",
        option=f"--torch {max(torches, key=key)}",
    )


def _wheels(name: str, files: Iterable[str]) -> Iterable[_Wheel]:
    for file in dict.fromkeys(files):
        try:
            found, version, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if found == name:
            yield file, version, tags


def _pythons(wheels: Sequence[_Wheel]) -> list[str]:
    matches = (_INTERPRETER.fullmatch(tag.interpreter) for _, _, tags in wheels for tag in tags)
    return sorted({f"3.{match[1]}" for match in matches if match}, key=key)


def _usable(wheels: Sequence[_Wheel], target: Target, python: str, image: Image) -> bool:
    """Return whether one of the wheels can be installed in an image with this Python."""
    ranks = ranks_of(target.platform, target.glibc, python)
    files = [file for file, _, tags in wheels if any(tag in ranks for tag in tags)]
    # All files are of one package, so each constraint begins with its name.
    excluded = SpecifierSet(",".join(line[line.index("!") :] for line in constraints(files, image, ranks)))
    return any(excluded.contains(version, prereleases=True) for file, version, _ in wheels if file in files)


def _listed(versions: Iterable[str]) -> str:
    ordered = sorted(versions, key=key)
    return ordered[0] if len(ordered) == 1 else f"{', '.join(ordered[:-1])} and {ordered[-1]}"
