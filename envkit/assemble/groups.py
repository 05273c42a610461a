"""Which packages share a layer: pure, and steady when one package changes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from envkit.ground.errors import UsageError

ALONE_FROM = 4 << 20  # bytes; a package of this size is worth a layer of its own
SHARED = 8  # layers at most for the small packages


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What the grouping looks at."""

    name: str
    size: int  # bytes to download


def groups(packages: Sequence[Package], budget: int) -> tuple[tuple[Package, ...], ...]:
    """The packages of each layer, from the bottom up, in at most `budget` layers.

    Large packages are alone, the largest at the bottom: they change rarely, and what lies above a changed layer has
    to be unpacked again. A small package belongs to the layer that its name chooses, so a new version of it, or
    another package beside it, leaves the other layers as they are.

    Raises:
        UsageError: `budget` is less than one layer.
    """
    if budget < 1:
        raise UsageError(f"{budget} layers are left for packages", hint="start from a base image with fewer layers")
    shared = min(SHARED, budget)
    ranked = sorted(packages, key=lambda package: (-package.size, package.name))
    large = [package for package in ranked if package.size >= ALONE_FROM][: budget - shared]
    buckets: dict[int, list[Package]] = {}
    for package in sorted(set(ranked) - set(large), key=lambda package: package.name):
        buckets.setdefault(_bucket(package.name, shared), []).append(package)
    return (*((package,) for package in large), *(tuple(buckets[index]) for index in sorted(buckets)))


def _bucket(name: str, count: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % count
