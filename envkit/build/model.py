"""What engines take and give. A `Builder` need not be able to run anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envkit.engine.failures import Place
from envkit.ground.progress import Reporter
from envkit.ground.settings import Mirrors
from envkit.lock.model import Lock, LockedBase
from envkit.plan.model import BuildPlan

if TYPE_CHECKING:
    from envkit.build.log import BuildLog


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
    """One build context's way through an engine."""

    name: str  # for messages: 'the build of <name>'
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None  # 'host' | 'none'; None = the engine's default
    no_cache: bool = False
    timeout_s: float | None = None
    secrets: tuple[tuple[str, Path], ...] = ()
    state: Path | None = None  # folder for the note of what is being made; None = no note


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
    output: str | None = None  # embedded: 'oci:DIR', 'docker-archive:FILE', 'docker-daemon' or 'registry:REFERENCE'
    wheel_dir: Path | None = None  # embedded: folder of wheels, looked at before anything is downloaded
    offline: bool = False  # embedded: download nothing
    compression: str = "gzip"  # embedded: 'gzip' | 'zstd', of the layers of packages
    replace_tag: bool = False  # embedded, registry: the tag may be another image's
    mount_from: tuple[str, ...] = ()  # embedded, registry: repositories of it whose blobs may be taken over


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
    lock: str | None = None  # digest of the lock that was installed
    place: str | None = None  # embedded: where the image went, 'oci:DIR'
    pushed: str | None = None  # embedded: the name in a registry, 'host/name@sha256:...'; its tag has not moved
    digest: str | None = None  # embedded: the manifest's, by which registries know the image
    sent: int | None = None  # embedded, registry: bytes of the blobs that it did not have


class Engine(Protocol):
    """What one container engine can do for a build. `envkit.build.builder` makes a `Builder` of it.

    Every method raises EnvironmentProblem when the engine cannot be reached.
    """

    name: str
    flavour: str  # of the Dockerfile it takes: 'classic' | 'buildkit'

    def probe(self) -> Probe:
        """Return whether the engine answers, within ten seconds; never raises."""

    def place(self) -> Place:
        """Return the engine's name and storage folder, for messages."""

    def make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter) -> str:
        """Build a context (a tar with a Dockerfile) and return the image's id; nothing is tagged.

        Raises:
            EngineError: a step failed; details hold the last lines of the log.
            TimeLimitError: `job.timeout_s` was reached; no container is left.
        """

    def digest(self, reference: str) -> str:
        """Return the manifest digest that a registry gives for a reference.

        Raises:
            EngineError: the registry has no such image, or refuses.
            EnvironmentProblem: no registry answers.
        """

    def local(self, reference: str) -> LocalImage | None:
        """Return an image of the engine's own storage, by id or name; never pulls."""

    def import_base(self, tar: Path, reference: str, env: Mapping[str, str]) -> LocalImage:
        """Make an image of one layer from a root file system's tar."""

    def tag(self, image: str, reference: str) -> None:
        """Give an image a further name."""

    def has_bridge(self) -> bool:
        """Return whether build steps get a network of their own by default."""

    def sweep(self, state: Path) -> int:
        """Remove what dead runs left (containers, temporary folders); returns how many containers."""


class Builder(Protocol):
    """One engine."""

    name: str

    def probe(self) -> Probe:
        """Return whether the engine answers, within ten seconds; never raises."""

    def locked_base(self, plan: BuildPlan, options: BuildOptions, reporter: Reporter) -> LockedBase:
        """Return what a lock that is made for this build stands on; nothing is downloaded or made.

        Raises:
            UsageError: `options.base` names nothing that can be one.
            EngineError: the registry answers and has no such image.
            EnvironmentProblem: no registry answers and there is no other way.
        """

    def build(self, plan: BuildPlan, lock: Lock | None, options: BuildOptions, reporter: Reporter) -> BuiltImage:
        """Build the plan.

        Args:
            plan: what to build.
            lock: the artifacts to install, exactly these; None = what the plan's specs give at the moment.
            options: how.
            reporter: hears of the progress.

        Raises:
            LockError: the lock was made for another plan.
            IntegrityError: an artifact is not what the lock says.
            EngineError: the build failed; details hold the last 30 lines.
            EnvironmentProblem: the engine went away, a disk is full, permission is missing.
            TimeLimitError: `options.timeout_s` was reached; nothing is left behind.
        """


def split_tag(reference: str) -> tuple[str, str]:
    """Return repository and tag of a name; the tag is `latest` where none is written."""
    repository, sign, tag = reference.rpartition(":")
    if not sign or "/" in tag:
        return reference, "latest"
    return repository, tag
