"""The Python that a project's markers are decided for, and the torch that its torchvision or torchaudio needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from envkit.ground.errors import UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan.names import distribution
from envkit.plan.requirements import FAMILY, PYTHONS, UNDECIDED, Contents, Line, Setting, Target, sort

COMPANIONS = ("torchvision", "torchaudio")
Resolved = Callable[[Contents], "str | None"]
"""Returns the Python of the plan of contents; None if no combination satisfies them."""

# Modules of newer Pythons for older ones: a Python without them misses nothing.
_BACKPORTS = frozenset([
    "async-timeout", "cached-property", "contextvars", "dataclasses", "eval-type-backport", "exceptiongroup",
    "graphlib-backport", "importlib-metadata", "importlib-resources", "pathlib2", "pickle5", "pkgutil-resolve-name",
    "singledispatch", "strenum", "taskgroup", "tomli", "typing", "typing-extensions", "zipp",
])  # fmt: skip
_RELEASE = re.compile(r"(?P<sign>[<>=!~^]*)\s*(?P<minor>3\.\d+)\.(?P<patch>\d+)(?:\.\*)?")


def decided(requirements: Contents, given: Mapping[str, Any], platform: str, resolved: Resolved) -> Contents:
    """Decide the markers that depend on the Python or platform, and fix the Python that they were decided for.

    Of the Pythons for which a combination exists, it is one for which a line of torch holds; then one for which most
    packages have a line that holds; then the one that is taken without markers, or the newest.
    """
    rows = [row.line for row in requirements.skipped if row.why.startswith(UNDECIDED)]
    if not rows:
        return requirements
    rest = replace(
        requirements, skipped=tuple(row for row in requirements.skipped if not row.why.startswith(UNDECIDED))
    )
    wanted = [str(given["python"])] if given.get("python") else [one.value for one in requirements.of("python")]
    pythons = [python for python in PYTHONS if all(allows(text, python) for text in wanted)] or list(PYTHONS)
    parts = {python: sort(rows, Target(python=python, platform=platform)) for python in pythons}
    if len(pythons) == 1 or all(part == parts[pythons[0]] for part in parts.values()):
        return rest + parts[pythons[-1]]  # the platform alone decides
    ranks = {python: _rank(part, _packages(rest)) for python, part in parts.items()}
    preferred = resolved(rest)

    def order(python: str) -> tuple[tuple[int, int], bool, int]:
        return ranks[python], python == preferred, int(python.partition(".")[2])

    ranked = sorted(pythons, key=order, reverse=True)
    choices = {python: _fixed(rest, parts[python], python, rows) for python in ranked}
    # If the lines contradict each other, it is one that torch itself has: the contradiction is not that of the Python.
    for kept in (lambda some: some, _of_torch):
        for python, some in choices.items():
            if resolved(kept(some)) == python:
                return some
    return choices[ranked[0]]


def _of_torch(contents: Contents) -> Contents:
    """Return the torch and the Python of contents, without what else limits them."""
    return Contents(settings=tuple(one for one in contents.settings if one.field in ("torch", "python")))


def _rank(part: Contents, others: set[str]) -> tuple[int, int]:
    """Return how many lines of torch, and how many packages that no other line has, a Python has."""
    family = {setting.field for setting in part.settings if setting.field in FAMILY}
    return len(family), len((_packages(part) | family) - others)


def _packages(contents: Contents) -> set[str]:
    """Return the names of the packages, without backports."""
    names = {distribution(package.spec) for package in (*contents.packages, *contents.constraints)}
    return {name for name in names if name not in _BACKPORTS and not name.startswith("backports-")}


def _fixed(rest: Contents, part: Contents, python: str, rows: list[Line]) -> Contents:
    used = [one.line for one in part.settings]
    used += [one.line for one in (*part.packages, *part.constraints)]
    torch = [setting.line for setting in part.settings if setting.field == "torch"]
    held = len(dict.fromkeys(used))
    note = f"Python {python} is taken: {held} of the {len(rows)} lines with a marker for Python hold for it"
    line = (torch or used or rows)[0]
    own = Setting(field="python", value=python, line=line, note=note)
    others = tuple(setting for setting in rest.settings if setting.field != "python")
    return replace(rest, settings=(*others, own)) + part


def allows(text: str, python: str) -> bool:
    """Return whether a constraint on Python allows a minor version."""
    if not text:
        return True
    try:
        return parse_constraint(minor(text), "python").allows(python)
    except UsageError:
        return True  # the error of the value itself is told elsewhere


def minor(text: str) -> str:
    """Return a constraint on Python by minor versions, as builds are made: `3.10.8` is 3.10, `>=3.9.2` is >=3.9."""
    clauses = []
    for clause in (part.strip() for part in text.split(",")):
        match = _RELEASE.fullmatch(clause)
        if match is None:
            clauses.append(clause)
            continue
        sign, version = match["sign"], match["minor"]
        follows = f"3.{int(version.partition('.')[2]) + 1}"
        if sign in ("", "=", "==", "===", "~="):
            clauses.append(version)
        elif sign in (">", ">="):
            clauses.append(f">={version}")
        # The minor version has releases below the limit, unless it is the first one.
        elif sign == "<=" or (sign == "<" and int(match["patch"])):
            clauses.append(f"<{follows}")
        elif sign == "<":
            clauses.append(f"<{version}")
        elif sign != "!=":
            clauses.append(clause)
    return ",".join(clauses)


def is_minor(text: str) -> bool:
    """Return whether a constraint on Python names one minor version."""
    return re.fullmatch(r"=*3\.\d+(?:\.\*)?", minor(text)) is not None


def by_minor(setting: Setting) -> Setting:
    """Return a setting of Python by its minor version, with a note if it names a patch release."""
    value = minor(setting.value)
    if setting.field != "python" or value == setting.value.strip():
        return setting
    note = setting.note or f"Python {value or 'of any version'} is taken: images are made per minor version"
    return replace(setting, value=value, note=note)


def pins(requirements: Contents) -> tuple[tuple[Setting, str], ...]:
    """Return the settings of torchvision and torchaudio that have a version, each as a requirement."""
    named = [setting for setting in requirements.settings if setting.field in COMPANIONS and setting.value]
    return tuple((setting, f"{setting.field}{clauses(setting.value)}") for setting in named)


def clauses(value: str) -> str:
    """Return a version as a specifier: `2.1` is `==2.1.*`, as conda and the request mean it."""
    if value[0] in "<>=!~":
        return value
    return f"=={value}" if value.endswith("*") or value.count(".") > 1 else f"=={value}.*"
