"""Choose one wheel per package of a `pylock.toml` (PEP 751), in the order of installers (PEP 425, PEP 600)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envkit.ground import trees
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.platforms import platform as by_name
from envkit.lock.values import last_part

# Minor version of glibc 2 -> the platform name from before tags contained glibc versions.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_LOWEST_GLIBC = 5  # of manylinux1, the first


@cache
def ranks_of(platform: str, glibc: str, python: str) -> Mapping[Tag, int]:
    """Return every tag that an interpreter can install, with its rank; 0 is the best."""
    machine = by_name(platform).machine
    platforms: list[str] = []
    for minor in range(int(glibc.split(".")[1]), _LOWEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        platforms += [f"{_LEGACY[minor]}_{machine}"] if minor in _LEGACY else []
    platforms.append(f"linux_{machine}")  # last, because such a tag does not say which glibc is needed
    version = tuple(int(part) for part in python.split(".")[:2])
    interpreter = f"cp{version[0]}{version[1]}"
    fitting = [
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    ]
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(fitting):
        ranks.setdefault(tag, rank)
    return MappingProxyType(ranks)


def _rank(file: str, ranks: Mapping[Tag, int]) -> tuple[int, int, str] | None:
    """Return the sort key of a wheel among those of its version, best first; None if it is not compatible."""
    try:
        _, _, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    fitting = [ranks[tag] for tag in tags if tag in ranks]
    # A higher build number is a later build of the same version.
    # With the file name last, the order of the index does not matter.
    return (min(fitting), -(build[0] if build else 0), file) if fitting else None


def has_wheel(row: Mapping[str, Any], ranks: Mapping[Tag, int]) -> bool:
    """Return whether a row of a pylock.toml has a compatible wheel."""
    return any(_rank(last_part(wheel["url"]), ranks) is not None for wheel in row.get("wheels", []))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWheel:
    """A wheel of an index."""

    name: str
    version: str
    url: str
    sha256: str
    size: int | None  # bytes; not every index has it


def parse_pylock(text: str, ranks: Mapping[Tag, int], *, without: Collection[str] = ()) -> tuple[IndexWheel, ...]:
    """Return the best compatible wheel of each package in a pylock.toml, sorted by name, except the names `without`.

    Raises:
        EnvironmentProblem: a package has no compatible wheel, or its wheel has no SHA-256, so it cannot be locked.
    """
    rows = trees.from_toml(text, "the lock of uv", error=EnvironmentProblem).get("packages", [])
    wheels = [_best_wheel(row, ranks) for row in rows if canonicalize_name(row["name"]) not in without]
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def versions_of(text: str) -> dict[str, str]:
    """Return normalized name -> version of the packages in a pylock.toml, with or without wheels.

    Raises:
        EnvironmentProblem: the text is not TOML.
    """
    rows = trees.from_toml(text, "the lock of uv", error=EnvironmentProblem).get("packages", [])
    return {canonicalize_name(row["name"]): str(row["version"]) for row in rows if "version" in row}


def _best_wheel(row: dict[str, Any], ranks: Mapping[Tag, int]) -> IndexWheel:
    name = canonicalize_name(row["name"])
    ranked = [(_rank(last_part(wheel["url"]), ranks), wheel) for wheel in row.get("wheels", [])]
    wheels = [(rank, wheel) for rank, wheel in ranked if rank is not None]
    if not wheels:
        raise EnvironmentProblem(f"the index has no compatible wheel of {name} {row.get('version', '')}".rstrip())
    _, wheel = min(wheels, key=lambda pair: pair[0])
    sha256 = wheel.get("hashes", {}).get("sha256")
    if sha256 is None:
        given = ", ".join(wheel.get("hashes", {})) or "no hash"
        raise EnvironmentProblem(
            f"the index has {given} for {last_part(wheel['url'])}; a lock needs its SHA-256",
            hint="use an index with SHA-256 hashes: ENVKIT_PYTHON_INDEX=URL",
        )
    return IndexWheel(name=name, version=str(row["version"]), url=wheel["url"], sha256=sha256, size=wheel.get("size"))
