"""Push an image to registries: every blob and manifest by digest, then verification, then the tags.

For `envkit push`, `envkit build --push`, `--output registry:...` and the fleet's workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.assemble.builders import EMBEDDED
from envkit.assemble.outputs import repositories
from envkit.engines.host_environment import ca_file
from envkit.ground.cache import run_folder
from envkit.ground.errors import EnvkitError, NotVerifiedError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.paths import cache_dir
from envkit.image.name import InEngine, InRegistry, parse_reference, registry_of
from envkit.registry.push import Pusher
from envkit.registry.registry import Registry
from envkit.registry.tagging import check_tag, check_target, move_tag
from envkit.registry.transport import Transport
from envkit.report.reading import headline
from envkit.run.source import find_source
from envkit.verify.verified import verified_by_file, verified_by_newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.engines.model import BuildOptions, BuiltImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.image.name import ImageName, Reference
    from envkit.plan.model import BuildPlan
    from envkit.registry.push import Pushed
    from envkit.run.source import Source
    from envkit.verify.record import Record
    from envkit.verify.verified import VerifiedBy

_EXAMPLE = "registry.example.com/team/train:1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A repository and the image's tags there; without tags it is pushed by digest only."""

    repository: Reference  # without tag and digest
    names: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagging:
    """The outcome for one tag."""

    image: str | None  # 'host/name@sha256:...', in the registry even if the tag was not set; None = not sent
    tag: str  # 'host/name:tag'
    why_not: str | None = None  # None = the tag was set
    hint: str | None = None
    error: EnvkitError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a build's document."""
        return {"reference": self.image, "tag": self.tag, "tagged": self.why_not is None, "why": self.why_not}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The outcome for one target."""

    id: str  # of the image: the digest of its configuration
    pushed: Pushed
    tags: tuple[Tagging, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a document; sizes in bytes."""
        return {
            "id": self.id,
            "reference": self.pushed.reference,
            "digest": self.pushed.digest,
            "sent_bytes": self.pushed.sent,
            "mounted_bytes": self.pushed.mounted,
            "present_bytes": self.pushed.present,
            "tags": [
                {"tag": tagging.tag, "tagged": tagging.why_not is None, "why": tagging.why_not} for tagging in self.tags
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """How tags are set and layers are found in a registry."""

    replace_tag: bool = False  # overwrite tags that point to another image
    mount_from: tuple[str, ...] = ()  # repositories of the same registry whose blobs may be reused


def transport_of(settings: Settings, reporter: Reporter) -> Transport:
    """Return connections that trust the CA bundle of the settings or of this machine.

    Raises:
        UsageError: the bundle cannot be read.
    """
    return Transport(ca_bundle=ca_file(settings.mirrors(), reporter))


def parse_name(text: str, what: str) -> Reference:
    """Parse an image name with a registry, so that an omitted registry never means a public one.

    Raises:
        UsageError: it is not an image name, has no registry, or has a digest; `what` begins the message.
    """
    if registry_of(text) is None:
        raise UsageError(f"{what} {text!r:.200} does not name a registry", hint=f"write HOST/NAME:TAG: {_EXAMPLE}")
    reference = parse_reference(text, what=f"{what} {text!r:.200}")
    if reference.digest is not None:
        raise UsageError(
            f"{what} {text!r:.200} has a digest, but the digest is determined by the image",
            hint=f"{reference.place}:TAG, or --no-tag {reference.place}",
        )
    return reference


def targets_of_names(names: Sequence[Reference]) -> tuple[Target, ...]:
    """Group names by repository, in the order in which they were typed."""
    by_repository: dict[Reference, list[Reference]] = {}
    for name in names:
        by_repository.setdefault(replace(name, tag=None), []).append(name)
    return tuple(
        Target(repository=repository, names=tuple(dict.fromkeys(tags))) for repository, tags in by_repository.items()
    )


def check_targets(
    targets: Sequence[Target], labels: dict[str, str], transport: Transport, reporter: Reporter, *, replace_tag: bool
) -> bool:
    """Check before any long work that the registries accept the image; return whether all its tags are free.

    Args:
        targets: the repositories and tags.
        labels: the known labels of the image; a tag of an image with other labels counts as taken.
        transport: connections.
        reporter: receives the steps.
        replace_tag: overwrite tags that point to another image.

    Raises:
        EngineError: a registry refuses, or a tag names another image.
        EnvironmentProblem: a registry cannot be reached.
    """
    free = True
    for target in targets:
        registry = Registry.of(target.repository, transport)
        reporter.step(f"check {target.repository.place}")
        if not target.names:  # with a tag, `check_target` tries it
            registry.try_upload(target.repository.repository)
        for name in target.names:
            free &= check_target(name, labels, registry, replace_tag=replace_tag)
    return free


def send(
    source: Source,
    targets: Sequence[Target],
    options: RegistryOptions,
    transport: Transport,
    reporter: Reporter,
    *,
    ahead: bool,
) -> Iterator[Sent]:
    """Send an image to each target, verify its bytes there, then set its tags.

    Args:
        source: the image.
        targets: the repositories and tags.
        options: `mount_from` applies to the first target's registry.
        transport: connections.
        reporter: receives the steps.
        ahead: send layers while others are still being compressed (only if `check_targets` returned True).

    Raises:
        EngineError: a registry refuses.
        IntegrityError: bytes do not match their digest, here or in the registry.
        EnvironmentProblem: a registry or engine does not answer, or the disk is full.
    """
    others = repositories(targets[0].repository, options.mount_from)
    image, known = None, [(targets[0].repository.registry, repository) for repository in others]
    for target in targets:
        registry = Registry.of(target.repository, transport)
        first = target.names[0] if target.names else target.repository
        pusher = Pusher(
            first,
            registry,
            sources=tuple(repository for host, repository in known if host == target.repository.registry),
            # Without a tag, none can point to another image.
            replace_tag=options.replace_tag or not target.names,
            ahead=ahead,
            fetch=source.fetch,
        )
        with pusher:
            # Only once: reading compresses the layers that an engine keeps as tars.
            image = image or source.read(pusher.offer)
            # The pusher itself checks only the tag of `first`.
            for name in target.names[1:]:
                check_tag(name, image.digest, registry, replace_tag=options.replace_tag)
            pushed = pusher.finish(image, reporter)
        reporter.note(f"pushed {pushed.reference}: {_amounts(pushed)}")
        # The next repository of the same registry can mount these blobs instead of receiving them again.
        known.append((target.repository.registry, target.repository.repository))
        tags = tuple(
            set_tag(name, pushed.reference, pushed.digest, registry, reporter, replace_tag=options.replace_tag)
            for name in target.names
        )
        yield Sent(id=image.id, pushed=pushed, tags=tags)


def set_tag(
    name: Reference, reference: str, digest: str, registry: Registry, reporter: Reporter, *, replace_tag: bool
) -> Tagging:
    """Set a tag to an image in its registry. A refusal is returned, not raised, so the other tags are still set."""
    try:
        move_tag(name, digest, registry, replace_tag=replace_tag)
    except EnvkitError as error:
        return Tagging(image=reference, tag=str(name), why_not=error.message, hint=error.hint, error=error)
    reporter.note(f"tagged {name}: {reference}")
    return Tagging(image=reference, tag=str(name))


# `envkit push`


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """One image to push."""

    image: ImageName
    engine: str | None  # the engine that has it, if known
    target: Target
    options: RegistryOptions
    settings: Settings
    verified: bool = True  # tag only if a record says that exactly this image passed verification
    record: Path | None = None  # that record; None = the newest one in the state folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What was pushed."""

    source: Source
    sent: Sent
    verified_by: VerifiedBy | None  # the record of the passed verification; None = not required


def push(request: PushRequest, state: Path, reporter: Reporter) -> PushResult:
    """Push an image and tag it, if a record says that exactly this image passed verification.

    Raises:
        NotVerifiedError: there is no such record.
        EngineError: the registry refuses.
        EnvironmentProblem: the registry or the engine cannot be reached.
        IntegrityError: bytes do not match their digest.
    """
    target, options = request.target, request.options
    with transport_of(request.settings, reporter) as transport, run_folder(cache_dir()) as folder:
        source = find_source(request.image, folder, transport, reporter, engine=request.engine)
        verified_by = None
        # An image without a record is refused before its target is contacted.
        if request.verified and request.record is not None:
            verified_by = verified_by_file(source.name, source.ids, request.record)
        elif request.verified:
            verified_by = verified_by_newest(source.name, source.ids, state)
        free = check_targets((target,), dict(source.labels), transport, reporter, replace_tag=options.replace_tag)
        (sent,) = send(source, (target,), options, transport, reporter, ahead=free)
    return PushResult(source=source, sent=sent, verified_by=verified_by)


# `envkit build`


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAfterBuild:
    """The registries that an image is pushed to after its build; may be none."""

    settings: Settings
    targets: tuple[Target, ...] = ()
    options: RegistryOptions = RegistryOptions()

    def begin(self, engine: str, options: BuildOptions, plan: BuildPlan, reporter: Reporter) -> BuildOptions:
        """Check before the build that the registries will accept the image; return the options to build with.

        The embedded engine pushes to the first target during the build.

        Raises:
            EngineError: a registry refuses, or a tag names another image.
            EnvironmentProblem: a registry cannot be reached.
        """
        if not self.targets:
            return options
        labels = {f"{LABEL_PREFIX}.plan": plan.digest}
        others = self.targets[1:] if engine == EMBEDDED else self.targets
        with transport_of(self.settings, reporter) as transport:
            check_targets(others, labels, transport, reporter, replace_tag=self.options.replace_tag)
        if engine != EMBEDDED:
            return options
        return replace(
            options,
            output=f"registry:{self.targets[0].names[0]}",
            replace_tag=self.options.replace_tag,
            mount_from=self.options.mount_from,
        )

    def end(
        self, image: ImageName, engine: str, record: Record | None, first: Tagging | None, reporter: Reporter
    ) -> tuple[Tagging, ...]:
        """Push to the remaining registries and set the tags, if verification passed or was not requested.

        Args:
            image: its name in the engine.
            engine: that built it.
            record: of the verification; None = not requested.
            first: the outcome for the tag that the build itself pushed to.
            reporter: receives the steps.
        """
        done = () if first is None else (first,)
        # The tag that the build itself pushed to is the first of all (see `begin`).
        names = [name for target in self.targets for name in target.names][len(done) :]
        if not names:
            return done
        # The image is not verified, or a registry refused it; nothing more is sent.
        if first is not None and first.why_not is not None:
            return (first, *(replace(first, tag=str(name)) for name in names))
        if record is not None and record.exit_code != 0:
            return tuple(not_verified(None, str(name), record) for name in names)
        tags: list[Tagging] = []
        try:
            for sent in self._send(image, engine, reporter):
                tags += sent.tags
        except EnvkitError as error:
            # Tags that were set before the failure are kept and reported.
            rest = names[max(len(tags) - len(done), 0) :]
            why, hint = error.message, error.hint
            tags += [Tagging(image=None, tag=str(reference), why_not=why, hint=hint, error=error) for reference in rest]
        # `_send` reports the build's own tag again; its outcome in `done` comes last and wins.
        by_tag = {tagging.tag: tagging for tagging in (*tags, *done)}
        return tuple(by_tag[str(name)] for target in self.targets for name in target.names)

    def _send(self, image: ImageName, engine: str, reporter: Reporter) -> Iterator[Sent]:
        """Push to all targets; a target that has the image already costs only a few requests."""
        with transport_of(self.settings, reporter) as transport, run_folder(cache_dir()) as folder:
            source = find_source(image, folder, transport, reporter, engine=engine)
            yield from send(source, self.targets, self.options, transport, reporter, ahead=True)


def tag_pushed(built: BuiltImage, options: BuildOptions, record: Record | None, reporter: Reporter) -> Tagging | None:
    """Set the tag of an image that its build pushed by digest; return None if nothing was pushed.

    The tag is set only if verification passed or was not requested; otherwise the outcome says why not.
    """
    if built.pushed is None or options.output is None:
        return None
    reference = output_reference(options)
    assert reference is not None
    assert built.digest is not None
    if record is not None and record.exit_code != 0:
        return not_verified(built.pushed, str(reference), record)
    try:
        with Transport(ca_bundle=ca_file(options.mirrors)) as transport:
            registry = Registry.of(reference, transport)
            return set_tag(reference, built.pushed, built.digest, registry, reporter, replace_tag=options.replace_tag)
    except EnvkitError as error:
        return Tagging(image=built.pushed, tag=str(reference), why_not=error.message, hint=error.hint, error=error)


def not_verified(image: str | None, tag: str, record: Record) -> Tagging:
    """Return the outcome for a tag that is not set because the image is not verified."""
    why = f"the image is not verified: {headline(record.tree['summary'])}, exit code {record.exit_code}"
    # Running again is quick: every layer is cached and every blob is in the registry.
    hint = "to tag it without verification, run again with --no-verify"
    if record.exit_code == NotVerifiedError.exit_code:
        hint = f"if only a GPU is missing, run again with --allow-cpu; {hint}"
    else:
        hint = f"envkit verify shows why; {hint}"
    return Tagging(image=image, tag=tag, why_not=why, hint=hint)


@contextlib.contextmanager
def tag_explained(built: BuiltImage, options: BuildOptions) -> Iterator[None]:
    """Add to an error during verification that the tag is unchanged."""
    try:
        yield
    except EnvkitError as error:
        if built.pushed is not None:
            error.details = (*error.details, unchanged(built.pushed, str(output_reference(options))))
        raise


def unchanged(image: str | None, tag: str) -> str:
    """Return a sentence that a tag was not set, and where the image is."""
    return f"{tag} is unchanged; " + (f"the image is in the registry as {image}" if image else "nothing was pushed")


def output_reference(options: BuildOptions) -> Reference | None:
    """Return the registry reference in `options.output`, if it has one."""
    target = options.target
    return target.reference if isinstance(target, InRegistry) else None


# fleet


def deliver(built: BuiltImage, options: BuildOptions, reporter: Reporter) -> BuiltImage:
    """Push an engine's image to the registry in `options.output` by digest, so no tag moves.

    An image that the build has pushed already, or whose output is not a registry, is returned unchanged.

    Raises:
        EngineError: the engine or the registry refuses.
        IntegrityError: bytes do not match their digest, here or in the registry.
        EnvironmentProblem: one of them does not answer, or a disk is full.
    """
    reference = output_reference(options)
    if reference is None or built.pushed is not None:
        return built
    with Transport(ca_bundle=ca_file(options.mirrors)) as transport, run_folder(cache_dir()) as folder:
        source = find_source(InEngine(name=built.id), folder, transport, reporter, engine=built.engine)
        pusher = Pusher(
            reference,
            Registry.of(reference, transport),
            sources=repositories(reference, options.mount_from),
            replace_tag=options.replace_tag,
            fetch=source.fetch,
        )
        with pusher:
            pushed = pusher.finish(source.read(pusher.offer), reporter)
    return replace(built, pushed=pushed.reference, digest=pushed.digest, sent=pushed.sent)


def _amounts(pushed: Pushed) -> str:
    sizes = {"sent": pushed.sent, "mounted": pushed.mounted, "already there": pushed.present}
    return ", ".join(f"{size / 1e6:.1f} MB {what}" for what, size in sizes.items() if size or what == "sent")
