"""What to take of a project that has several variants: a platform, extras, groups, a pixi environment."""

from __future__ import annotations

from dataclasses import dataclass

from envkit.ground.platforms import X86


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choices of a user; without any, the variant with CUDA is taken, and no group of developers."""

    platform: str = X86.name
    cpu: bool = False  # the CPU variant is wanted
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    environment: str | None = None  # of a pixi project
    torch: str | None = None  # constraints that count before those of the files
    cuda: str | None = None


DEFAULT = Choice()
