"""What engines take and give. A `Builder` need not be able to run anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envkit.plan.model import BuildPlan
from envkit.progress import Reporter
from envkit.settings import Mirrors

LABEL_PREFIX = "io.github.envkit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Whether an engine answers here, and what it is."""

    name: str  # 'docker' | 'buildkit' | 'podman'
    available: bool
    detail: str  # version and address, or the reason why not
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base image as it will stand in FROM."""

    reference: str  # with a digest, or a local image id for a bootstrapped base
    digest: str | None  # manifest digest; None for local images
    origin: str  # 'registry' | 'bootstrap' | 'local'
    name: str  # what the user knows it as: 'docker.io/library/debian:bookworm-slim'


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How to build: nothing here changes what the image holds."""

    tags: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    base: str = "auto"  # 'auto' | an image reference | 'bootstrap:debian/bookworm'
    no_cache: bool = False
    timeout_s: float | None = None
    network: str = "auto"  # 'auto' | 'default' | 'host' | 'none'
    mirrors: Mirrors = field(default_factory=Mirrors)
    template_dirs: tuple[Path, ...] = ()
    log_file: Path | None = None
    secrets: tuple[tuple[str, Path], ...] = ()  # BuildKit: (id, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """What came out. Work goes on by `id`, never by tag."""

    id: str  # 'sha256:...': the engine's image id
    tags: tuple[str, ...]
    engine: str
    size: int | None  # bytes, as the engine counts
    base: BaseImage
    plan_digest: str
    labels: tuple[tuple[str, str], ...]
    duration_s: float
    log_file: Path | None


class Builder(Protocol):
    """One engine."""

    name: str

    def probe(self) -> Probe:
        """Whether the engine answers, within ten seconds; never raises."""

    def build(self, plan: BuildPlan, options: BuildOptions, reporter: Reporter) -> BuiltImage:
        """Build the plan.

        Raises:
            EngineError: the build failed; details hold the last 30 lines.
            SurroundingsError: the engine went away, a disk is full, permission is missing.
            TimeLimitError: `options.timeout_s` was reached; nothing is left behind.
        """
