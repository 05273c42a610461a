"""The engines that build images, and the runners that run them, by name: every list of them is made from these.

Names, because settings and options need them before anything of an engine is imported. What an engine does is in
`envkit.engines` and `envkit.assemble`, what a runner does in `envkit.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineName:
    """An engine, seen from outside."""

    runner: str  # runs what the engine builds
    has_store: bool  # it keeps images under names; without, it writes files


ENGINES: Mapping[str, EngineName] = MappingProxyType(
    {
        "docker": EngineName(runner="docker", has_store=True),
        "buildkit": EngineName(runner="docker", has_store=True),
        "podman": EngineName(runner="podman", has_store=True),
        "embedded": EngineName(runner="bubblewrap", has_store=False),
    }
)
"""In the order in which `auto` tries them."""

RUNNERS = ("docker", "podman", "bubblewrap", "proot", "host")

STORES = tuple(dict.fromkeys(engine.runner for engine in ENGINES.values() if engine.has_store))
"""The runners whose images have plain names."""


def has_store(engine: str | None) -> bool:
    """Return whether an engine of this name keeps images under names."""
    row = ENGINES.get(engine or "")
    return row is not None and row.has_store
