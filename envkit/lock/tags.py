"""Which wheels are compatible with an interpreter, best first, in the order of installers (PEP 425, PEP 600)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envkit.ground.platforms import platform as by_name

# Names from before glibc versions stood in the tag, and the glibc 2.x they mean.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_LOWEST_GLIBC = 5


@cache
def order(platform: str, glibc: str, python: str) -> Mapping[Tag, int]:
    """Every tag that fits, with its rank: 0 is the best."""
    machine = by_name(platform).machine
    platforms: list[str] = []
    for minor in range(int(glibc.split(".")[1]), _LOWEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        platforms += [f"{_LEGACY[minor]}_{machine}"] if minor in _LEGACY else []
    platforms.append(f"linux_{machine}")
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


def rank(file: str, ranks: Mapping[Tag, int]) -> tuple[int, int, str] | None:
    """Sort key of a wheel among others of its version, the best first; None where it does not fit."""
    try:
        _, _, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    fitting = [ranks[tag] for tag in tags if tag in ranks]
    return (min(fitting), -(build[0] if build else 0), file) if fitting else None
