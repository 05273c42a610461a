"""The output of uv, a `pylock.toml` (PEP 751), as rows: one wheel per package."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.tags import Tag
from packaging.utils import canonicalize_name

from envkit.ground.errors import EnvironmentProblem
from envkit.lock.tags import rank
from envkit.lock.values import last_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A wheel as an index offers it."""

    name: str
    version: str
    url: str
    sha256: str
    size: int | None  # bytes; not every index tells


def parse(text: str, ranks: Mapping[Tag, int], *, without: Collection[str] = ()) -> tuple[Found, ...]:
    """The wheels of a pylock.toml that fit best (`envkit.lock.tags`), sorted by name, without those of `without`.

    Raises:
        EnvironmentProblem: a package has no wheel, or its wheel no SHA-256: what the index offers cannot be locked.
    """
    rows = tomllib.loads(text).get("packages", [])
    found = [_found(row, ranks) for row in rows if canonicalize_name(row["name"]) not in without]
    return tuple(sorted(found, key=lambda one: one.name))


def _found(row: dict[str, Any], ranks: Mapping[Tag, int]) -> Found:
    name = canonicalize_name(row["name"])
    offered = [(rank(last_part(wheel["url"]), ranks), wheel) for wheel in row.get("wheels", [])]
    wheels = [(place, wheel) for place, wheel in offered if place is not None]
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
    return Found(name=name, version=str(row["version"]), url=wheel["url"], sha256=sha256, size=wheel.get("size"))
