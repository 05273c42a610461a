"""Types of engines and builders: their protocols, options and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envkit.engines.failures import EngineInfo
from envkit.ground.progress import Reporter
from envkit.ground.settings import Mirrors
from envkit.image.name import OutputName, output_name
from envkit.lock.model import Lock, LockedBase
from envkit.plan.model import BuildPlan

if TYPE_CHECKING:
    from envkit.engines.log import BuildLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Whether an engine answers here, and what it is."""

    name: str  # 'docker' | 'buildkit' | 'podman'
    available: bool
    detail: str  # version and address, or the reason why not
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalImage:
    """An image in an engine's storage."""

    id: str  # 'sha256:...'
    digests: tuple[str, ...]  # 'repository@sha256:...' for each registry it came from
    size: int | None  # bytes
    labels: Mapping[str, str]
    created: str  # RFC 3339


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How an engine builds one context."""

    name: str  # for messages: 'the build of <name>'
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None  # 'host' | 'none'; None = the engine's default
    no_cache: bool = False
    timeout_s: float | None = None
    secrets: tuple[tuple[str, Path], ...] = ()
    state: Path | None = None  # folder for the journal; None = no journal


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base image for FROM."""

    reference: str  # with a digest, or a local name for a bootstrapped base
    digest: str | None  # manifest digest; None for images that no registry has
    origin: str  # 'registry' | 'bootstrap' | 'local'
    name: str  # the user's name for it: 'docker.io/library/debian:bookworm-slim'


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build that are not part of the plan."""

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
    output: str | None = None  # embedded: `--output`, see `target`
    wheel_dir: Path | None = None  # embedded: folder of wheels that need not be downloaded
    offline: bool = False  # embedded: download nothing
    compression: str = "gzip"  # embedded: 'gzip' | 'zstd', for the layers of packages
    replace_tag: bool = False  # embedded, registry: overwrite a tag that points to another image
    mount_from: tuple[str, ...] = ()  # embedded, registry: its repositories from which blobs may be mounted

    @property
    def target(self) -> OutputName | None:
        """Where the image is written; None: where the engine keeps its images.

        Raises:
            UsageError: `output` is invalid.
        """
        return output_name(self.output) if self.output else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """The result of a build. Use `id` for further work, because tags can move."""

    id: str  # 'sha256:...': the engine's image ID
    tags: tuple[str, ...]
    engine: str
    size: int | None  # bytes, as the engine reports them
    base: BaseImage
    plan_digest: str
    labels: tuple[tuple[str, str], ...]
    duration_s: float
    log_file: Path | None
    lock: str | None = None  # digest of the installed lock
    place: str | None = None  # embedded: where the image was written, 'oci:DIR'
    pushed: str | None = None  # embedded: the name in a registry, 'host/name@sha256:...'; its tag has not moved yet
    digest: str | None = None  # embedded: the manifest's digest
    sent: int | None = None  # embedded, registry: bytes of the uploaded blobs


class Engine(Protocol):
    """The operations of one container engine, from which `envkit.engines.builder` makes a `Builder`.

    Every method except `probe` raises EnvironmentProblem if the engine cannot be reached.
    """

    name: str
    syntax: str  # of its Dockerfiles: 'classic' | 'buildkit'

    def probe(self) -> Probe:
        """Return whether the engine answers, within ten seconds. Never raises."""

    def info(self) -> EngineInfo:
        """Return the engine's name and storage folder, for messages."""

    def make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter) -> str:
        """Build a context (a tar with a Dockerfile) and return the image ID. Nothing is tagged.

        Raises:
            EngineError: a step failed; the details have the last lines of the log.
            TimeLimitError: `job.timeout_s` was reached; no container is left.
        """

    def digest(self, reference: str) -> str:
        """Return the manifest digest of a reference in its registry.

        Raises:
            EngineError: the registry does not have the image, or refuses access.
            EnvironmentProblem: no registry answers.
        """

    def local(self, reference: str) -> LocalImage | None:
        """Return an image in the engine's own storage by ID or name, None if it is not there. Never pulls."""

    def import_base(self, tar: Path, reference: str, env: Mapping[str, str]) -> LocalImage:
        """Import a root file system's tar as an image of one layer."""

    def tag(self, image: str, reference: str) -> None:
        """Add a tag to an image."""

    def has_bridge(self) -> bool:
        """Return whether build steps get a network of their own by default."""

    def sweep(self, state: Path) -> int:
        """Remove the containers and temporary folders of killed runs and return the number of containers."""


class Builder(Protocol):
    """Builds images. A builder need not be able to run them."""

    name: str

    def probe(self) -> Probe:
        """Return whether the engine answers, within ten seconds. Never raises."""

    def locked_base(self, plan: BuildPlan, options: BuildOptions, reporter: Reporter) -> LockedBase:
        """Return the base for a lock of this build. Nothing is downloaded or built.

        Raises:
            UsageError: `options.base` cannot be a base.
            EngineError: the registry answers, but does not have the image.
            EnvironmentProblem: no registry answers and there is no fallback.
        """

    def build(self, plan: BuildPlan, lock: Lock | None, options: BuildOptions, reporter: Reporter) -> BuiltImage:
        """Build the plan.

        Args:
            plan: what to build.
            lock: the exact artifacts to install; None = the newest that match the plan.
            options: how to build.
            reporter: receives the progress.

        Raises:
            LockError: the lock was made for another plan.
            IntegrityError: an artifact does not match the lock.
            EngineError: the build failed; the details have the last 30 lines.
            EnvironmentProblem: the engine was lost, a disk is full, or a permission is missing.
            TimeLimitError: `options.timeout_s` was reached; nothing is left behind.
        """
