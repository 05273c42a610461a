"""Check that a lock is complete: all requested packages and their dependencies. Pure.

A lock from which rows were deleted would build an image without these packages. Locked wheels do not list their
dependencies, so for wheels only the requested names can be checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envkit.lock.model import Lock
from envkit.lock.stubs import distribution_of, of_conda

_CONDA = re.compile(r"(?:[^\s:]+::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:=([0-9][^=\s]*))?")
_SHOWN = 10  # packages; the rest is only counted


def gaps(lock: Lock) -> tuple[str, ...]:
    """Return one line for each missing package, at most ten and a count; nothing if the lock is complete."""
    lines = list(dict.fromkeys((*_of_conda(lock), *_of_wheels(lock))))
    more = len(lines) - _SHOWN
    return (*lines[:_SHOWN], *([f"{more} more packages are missing"] if more > 0 else []))


def _of_conda(lock: Lock) -> Iterator[str]:
    rows = {row.name.lower(): row for row in lock.conda}
    for spec in _requested(lock, "conda"):
        name, version = _parsed(spec)
        if name not in rows:
            yield f"{name} is requested, but the lock has no such conda package"
        # Only this version is compared: envkit writes the spec itself, as `python=3.11`. Others may have any range.
        elif name == "python" and version and not f"{rows[name].version}.".startswith(f"{version}."):
            yield f"python {version} is requested, but the lock has {rows[name].version}"
    for row in lock.conda:
        for depend in row.depends:
            name, _ = _parsed(depend)
            # `__glibc` and the like are virtual packages: they describe the machine and are not installed.
            if not name.startswith("__") and name not in rows:
                yield f"{row.name} depends on {name}, but the lock has no such conda package"


def _of_wheels(lock: Lock) -> Iterator[str]:
    rows = {row.name: row.version for row in lock.wheels}
    others = {distribution_of(row.name) for row in lock.conda}
    sources = (_requirement(text) for text in _requested(lock, "allow_source"))
    for text in (*_requested(lock, "wheels"), *_requested(lock, "pip"), *sources):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield f"{text!r:.100} is requested, but it is not a requirement"
            continue
        name = canonicalize_name(requirement.name)
        if name not in rows:
            # A Python package of conda satisfies a pip requirement, so there is no wheel of it.
            if name not in others:
                yield f"{name} is requested, but the lock has no such wheel"
        elif not _satisfies(requirement, rows[name]):
            yield f"{requirement} is requested, but the lock has {name} {rows[name]}"


def beyond_constraints(lock: Lock) -> dict[str, str]:
    """Return name -> error for each package that a constraint does not allow, including conda's Python packages."""
    wheels = {row.name: ("wheel", row.version) for row in lock.wheels}
    conda = {name: ("conda package", version) for name, version in of_conda(lock.conda).items()}
    lines: dict[str, str] = {}
    for wanted in map(Requirement, _requested(lock, "constraints")):
        name = canonicalize_name(wanted.name)
        kind, version = (conda | wheels).get(name, ("", ""))
        if kind and not _satisfies(wanted, version):
            lines[name] = f"the constraint {wanted} does not allow the {kind} {name} {version}"
    return lines


def _requirement(source: str) -> str:
    """Return an entry of `allow_source` without the address of its repository."""
    return source.partition("@")[0].strip()


def _satisfies(requirement: Requirement, version: str) -> bool:
    try:
        # The solver decided whether to use a pre-release, so one in the lock is accepted.
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _requested(lock: Lock, field: str) -> Iterable[str]:
    texts = dict(lock.request).get(field)
    return texts if isinstance(texts, tuple) else ()


def _parsed(spec: str) -> tuple[str, str | None]:
    """Return the name and the version prefix of a conda spec: `python=3.11`, `numpy >=1.2`, `conda-forge::pip`."""
    match = _CONDA.match(spec.strip())
    return (match[1].lower(), match[2]) if match else (spec.strip()[:100], None)
