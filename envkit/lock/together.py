"""Solve conda packages and the wheels beside them so that each fits the other's requirements.

conda's solver does not know what wheels require of the packages that it chooses, and uv only knows which versions are
chosen. So what uv says that a wheel needs of a conda package becomes a conda spec, and both are solved again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envkit.ground.errors import ConflictError
from envkit.lock import stubs
from envkit.lock.model import CondaPackage

Packages = tuple[CondaPackage, ...]
T = TypeVar("T")

_ROUNDS = 5  # of solving again; each names at least one further requirement
# uv: `Because old==1 depends on numpy<2 and you require numpy==2.2.6`, `all versions of old depend on numpy>=1.21,<2`
_NEEDS = re.compile(r"depends? on (?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<range>[<>=!~][^\s;]*)")


def solve(conda: Callable[[Sequence[str]], Packages], wheels: Callable[[Packages], T]) -> tuple[Packages, T]:
    """Return conda packages and what is solved beside them.

    Args:
        conda: solves the conda packages with further specs.
        wheels: solves the wheels beside conda packages.

    Raises:
        ConflictError: the wheels fit no conda packages; it is that of the first try.
        EnvkitError: as the functions raise.
    """
    packages, more, errors = conda(()), list[str](), list[ConflictError]()
    while True:
        try:
            return packages, wheels(packages)
        except ConflictError as error:
            errors.append(error)
        found = [spec for spec in needs(errors[-1], packages) if spec not in more]
        if not found or len(errors) > _ROUNDS:
            raise errors[0]
        more += found
        try:
            packages = conda(more)
        except ConflictError as error:
            raise errors[0] from error  # conda has no such version; the requirement of the wheel says more


def needs(error: ConflictError, packages: Packages) -> list[str]:
    """Return conda specs for what an error of uv says that wheels require of conda packages and do not get."""
    chosen = stubs.of_conda(packages)
    names = {stubs.distribution_of(package.name): package.name for package in packages}
    specs = []
    for match in _NEEDS.finditer(" ".join((error.message, *error.details))):
        name, wanted = canonicalize_name(match["name"]), match["range"].rstrip(",.)")
        try:
            unmet = name in chosen and not SpecifierSet(wanted).contains(chosen[name], prereleases=True)
        except InvalidSpecifier:
            continue
        if unmet:
            specs.append(f"{names[name]} {wanted}")
    return list(dict.fromkeys(specs))
