"""Publish an image: push every blob and manifest by digest, and set tags only after verification has passed.

For `envkit push`, `envkit build --push`, `--output registry:...` and the fleet's workers. No other module sets the tag
of a verified image.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from envkit.assemble.builders import EMBEDDED
from envkit.assemble.outputs import repositories
from envkit.engines.builder import EngineBuilder
from envkit.engines.host_environment import ca_file
from envkit.ground.cache import run_folder
from envkit.ground.errors import EnvkitError, NotVerifiedError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.paths import cache_dir
from envkit.ground.sizes import shown_size
from envkit.ground.state import own_layout
from envkit.image.name import InEngine, InLayout, InRegistry, parse_reference, registry_of, split_tag
from envkit.pipeline.machine import name_and_engine
from envkit.registry.push import Pusher
from envkit.registry.registry import Registry
from envkit.registry.tagging import check_tag, check_target, move_tag
from envkit.registry.transport import Transport
from envkit.report.reading import headline
from envkit.run.source import find_source
from envkit.verify.verified import verified_by_file, verified_by_newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.engines.model import Builder, BuildOptions, BuiltImage
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

    @classmethod
    def refused(cls, image: str | None, name: Reference, error: EnvkitError) -> Self:
        """Return the outcome for a tag that was not set because of an error."""
        return cls(image=image, tag=str(name), why_not=error.message, hint=error.hint, error=error)

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
class PushResult:
    """What `push` pushed."""

    source: Source
    sent: Sent
    verified_by: VerifiedBy | None  # the record of the passed verification; None = not required


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Where an image is pushed to; may be nowhere."""

    settings: Settings
    targets: tuple[Target, ...] = ()
    replace_tag: bool = False  # overwrite tags that point to another image
    mount_from: tuple[str, ...] = ()  # repositories in the registry of the first target whose blobs may be reused

    def begin(self, engine: str, options: BuildOptions, plan: BuildPlan, reporter: Reporter) -> BuildOptions:
        """Check before a build that the registries will accept the image; return the options to build with.

        The embedded engine pushes to the first target during the build.

        Raises:
            EngineError: a registry refuses, or a tag names another image.
            EnvironmentProblem: a registry cannot be reached.
        """
        if not self.targets:
            return options
        labels = {f"{LABEL_PREFIX}.plan": plan.digest}
        others = self.targets[1:] if engine == EMBEDDED else self.targets
        with self.connect(reporter) as transport:
            replace(self, targets=others).check(labels, transport, reporter)
        if engine != EMBEDDED:
            return options
        output = f"registry:{self.targets[0].names[0]}"
        return replace(options, output=output, replace_tag=self.replace_tag, mount_from=self.mount_from)

    def end(
        self, built: BuiltImage, options: BuildOptions, record: Record | None, reporter: Reporter
    ) -> tuple[Tagging, ...]:
        """Set the tag that the build pushed to itself, then push to the other targets and set their tags.

        If verification ran and did not pass, no tag is set and nothing more is sent.

        Args:
            built: the image.
            options: of its build.
            record: of the verification; None = not requested.
            reporter: receives the steps.
        """
        done = _tag_output(built, options, record, reporter)
        # The tag that the build itself pushed to is the first of all (see `begin`).
        names = [name for target in self.targets for name in target.names][len(done) :]
        if not names:
            return done
        # The image is not verified, or a registry refused it; nothing more is sent.
        if done and done[0].why_not is not None:
            return (*done, *(replace(done[0], tag=str(name)) for name in names))
        if record is not None and record.exit_code != 0:
            return tuple(_not_verified(None, name, record) for name in names)
        tags: list[Tagging] = []
        image, engine = name_and_engine(built)
        try:
            with self.connect(reporter) as transport, run_folder(cache_dir()) as folder:
                source = find_source(image, folder, transport, reporter, engine=engine)
                # A target that has the image already costs only a few requests.
                for sent in self.send(source, transport, reporter, ahead=True):
                    tags += sent.tags
        except EnvkitError as error:
            # Tags that were set before the failure are kept and reported.
            tags += [Tagging.refused(None, name, error) for name in names[max(len(tags) - len(done), 0) :]]
        # `send` reports the build's own tag again; its outcome in `done` comes last and wins.
        by_tag = {tagging.tag: tagging for tagging in (*tags, *done)}
        return tuple(by_tag[str(name)] for target in self.targets for name in target.names)

    def connect(self, reporter: Reporter) -> Transport:
        """Return connections that trust the CA bundle of the settings or of this machine.

        Raises:
            UsageError: the bundle cannot be read.
        """
        return Transport(ca_bundle=ca_file(self.settings.mirrors(), reporter))

    def check(self, labels: dict[str, str], transport: Transport, reporter: Reporter) -> bool:
        """Check before any long work that the registries accept the image; return whether all its tags are free.

        Args:
            labels: the known labels of the image; a tag of an image with other labels counts as taken.
            transport: connections.
            reporter: receives the steps.

        Raises:
            EngineError: a registry refuses, or a tag names another image.
            EnvironmentProblem: a registry cannot be reached.
        """
        free = True
        for target in self.targets:
            registry = Registry.of(target.repository, transport)
            reporter.step(f"check {target.repository.place}")
            if not target.names:  # with a tag, `check_target` tries it
                registry.try_upload(target.repository.repository)
            for name in target.names:
                free &= check_target(name, labels, registry, replace_tag=self.replace_tag)
        return free

    def send(self, source: Source, transport: Transport, reporter: Reporter, *, ahead: bool) -> Iterator[Sent]:
        """Send an image to each target, verify its bytes there, then set its tags.

        Args:
            source: the image.
            transport: connections.
            reporter: receives the steps.
            ahead: send layers while others are still being compressed (only if `check` returned True).

        Raises:
            EngineError: a registry refuses.
            IntegrityError: bytes do not match their digest, here or in the registry.
            EnvironmentProblem: a registry or engine does not answer, or the disk is full.
        """
        others = repositories(self.targets[0].repository, self.mount_from)
        image, known = None, [(self.targets[0].repository.registry, repository) for repository in others]
        for target in self.targets:
            registry = Registry.of(target.repository, transport)
            first = target.names[0] if target.names else target.repository
            pusher = Pusher(
                first,
                registry,
                sources=tuple(repository for host, repository in known if host == target.repository.registry),
                # Without a tag, none can point to another image.
                replace_tag=self.replace_tag or not target.names,
                ahead=ahead,
                fetch=source.fetch,
            )
            with pusher:
                # Only once: reading compresses the layers that an engine keeps as tars.
                image = image or source.read(pusher.offer)
                # The pusher itself checks only the tag of `first`.
                for name in target.names[1:]:
                    check_tag(name, image.digest, registry, replace_tag=self.replace_tag)
                pushed = pusher.finish(image, reporter)
            reporter.note(f"pushed {pushed.reference}: {_amounts(pushed)}")
            # The next repository of the same registry can mount these blobs instead of receiving them again.
            known.append((target.repository.registry, target.repository.repository))
            tags = tuple(
                _tag(name, pushed.reference, pushed.digest, registry, reporter, replace_tag=self.replace_tag)
                for name in target.names
            )
            yield Sent(id=image.id, pushed=pushed, tags=tags)


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


def push(
    image: ImageName,
    engine: str | None,
    to: Push,
    state: Path,
    reporter: Reporter,
    *,
    verified: bool = True,
    record: Path | None = None,
) -> PushResult:
    """Push an image to one target and tag it, if a record says that exactly this image passed verification.

    Args:
        image: its name.
        engine: the engine that has it, if known.
        to: the target.
        state: the state folder.
        reporter: receives the steps.
        verified: whether a record is required.
        record: that record; None = the newest one in the state folder.

    Raises:
        NotVerifiedError: there is no such record.
        EngineError: the registry refuses.
        EnvironmentProblem: the registry or the engine cannot be reached.
        IntegrityError: bytes do not match their digest.
    """
    with to.connect(reporter) as transport, run_folder(cache_dir()) as folder:
        source = find_source(image, folder, transport, reporter, engine=engine)
        verified_by = None
        # An image without a record is refused before its target is contacted.
        if verified and record is not None:
            verified_by = verified_by_file(source.name, source.ids, record)
        elif verified:
            verified_by = verified_by_newest(source.name, source.ids, state)
        free = to.check(dict(source.labels), transport, reporter)
        (sent,) = to.send(source, transport, reporter, ahead=free)
    return PushResult(source=source, sent=sent, verified_by=verified_by)


def _tag(
    name: Reference, image: str, digest: str, registry: Registry, reporter: Reporter, *, replace_tag: bool
) -> Tagging:
    """Set a tag to an image in its registry. A refusal is returned, not raised, so the other tags are still set."""
    try:
        move_tag(name, digest, registry, replace_tag=replace_tag)
    except EnvkitError as error:
        return Tagging.refused(image, name, error)
    reporter.note(f"tagged {name}: {image}")
    return Tagging(image=image, tag=str(name))


def _tag_output(
    built: BuiltImage, options: BuildOptions, record: Record | None, reporter: Reporter
) -> tuple[Tagging, ...]:
    """Set the tag of an image that its build pushed by digest; return nothing if nothing was pushed."""
    name = output_reference(options)
    if built.pushed is None or name is None:
        return ()
    assert built.digest is not None
    if record is not None and record.exit_code != 0:
        return (_not_verified(built.pushed, name, record),)
    try:
        with output_registry(name, options) as registry:
            return (_tag(name, built.pushed, built.digest, registry, reporter, replace_tag=options.replace_tag),)
    except EnvkitError as error:
        return (Tagging.refused(built.pushed, name, error),)


def _not_verified(image: str | None, name: Reference, record: Record) -> Tagging:
    """Return the outcome for a tag that is not set because the image is not verified."""
    why = f"the image is not verified: {headline(record.tree['summary'])}, exit code {record.exit_code}"
    # Running again is quick: every layer is cached and every blob is in the registry.
    hint = "to tag it without verification, run again with --no-verify"
    if record.exit_code == NotVerifiedError.exit_code:
        hint = f"if only a GPU is missing, run again with --allow-cpu; {hint}"
    else:
        hint = f"envkit verify shows why; {hint}"
    return Tagging(image=image, tag=str(name), why_not=why, hint=hint)


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


class Publication:
    """One image of a fleet. Later runs find it by its hash tag, which is set after its verification has passed.

    So are all its tags in a registry. Beside a layout, which has no tags, the file `NAME.unproved` marks an image that
    has not passed verification.

    Args:
        builder: the builder of the image.
        options: its names and its output.
        own_tag: its hash tag.
        state: the state folder.
        verify: whether the image is verified; if not, it is found as soon as it is built.
    """

    def __init__(
        self, builder: Builder, options: BuildOptions, *, own_tag: str, state: Path, verify: bool = True
    ) -> None:
        self._engine = builder.engine if isinstance(builder, EngineBuilder) else None
        self._options, self._own_tag, self._verify = options, own_tag, verify
        layout = output_layout(options, state) if verify and self._engine is None else None
        self._mark = None if layout is None else layout.path.with_name(f"{layout.path.name}.unproved")

    @property
    def is_marked(self) -> bool:
        """Whether an earlier run built the image but did not verify it."""
        return self._mark is not None and self._mark.exists()

    def begin(self) -> BuildOptions:
        """Mark the image as not verified and return the options with the names to build it under.

        Raises:
            OSError: the mark cannot be written beside the layout.
        """
        if self._engine is not None and self._verify:
            return self._options
        if self._mark is not None:
            # Before the layout exists, so that a killed run leaves none without a mark.
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        return replace(self._options, tags=with_hash(self._options.tags, self._own_tag))

    def end(self, built: BuiltImage, reporter: Reporter) -> BuiltImage:
        """Let later runs find an image that passed verification, or whose verification was not requested.

        An image for a registry is pushed by digest, unless its build did that, and then tagged.

        Raises:
            EngineError: the engine or the registry refuses, or a tag names another image.
            IntegrityError: bytes do not match their digest, here or in the registry.
            EnvironmentProblem: one of them does not answer, or a disk is full.
        """
        if self._engine is not None and self._verify:
            for name in self._options.tags[:1]:
                self._engine.tag(built.id, hashed(name, self._own_tag))
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
        reference = output_reference(self._options)
        if reference is None:
            return built
        with output_registry(reference, self._options) as registry:
            if built.pushed is None:
                built = self._push(built, reference, registry, reporter)
            # The hash tag comes last: later runs look for it, so it must not exist before the output's own tag is set.
            for tag in dict.fromkeys((reference.tag, self._own_tag)):
                self._move(replace(reference, tag=tag), str(built.digest), registry)
        return built

    def again(self, image: str, digest: str | None) -> None:
        """Give an existing image its names, as a build would have done.

        Args:
            image: its ID in the engine.
            digest: of its manifest in the registry.

        Raises:
            EngineError: a tag names another image, or the engine or the registry refuses.
        """
        reference = output_reference(self._options)
        if reference is None and self._engine is not None:
            for name in self._options.tags:
                self._engine.tag(image, name)
        if reference is None or reference.tag == self._own_tag:
            return
        assert digest is not None
        with output_registry(reference, self._options) as registry:
            manifest = registry.manifest(reference)
            if manifest is None or manifest.digest != digest:
                self._move(reference, digest, registry)

    def _move(self, reference: Reference, digest: str, registry: Registry) -> None:
        move_tag(reference, digest, registry, replace_tag=self._options.replace_tag)

    def _push(self, built: BuiltImage, reference: Reference, registry: Registry, reporter: Reporter) -> BuiltImage:
        with run_folder(cache_dir()) as folder:
            source = find_source(InEngine(name=built.id), folder, registry.transport, reporter, engine=built.engine)
            pusher = Pusher(
                reference,
                registry,
                sources=repositories(reference, self._options.mount_from),
                replace_tag=self._options.replace_tag,
                fetch=source.fetch,
            )
            with pusher:
                pushed = pusher.finish(source.read(pusher.offer), reporter)
        return replace(built, pushed=pushed.reference, digest=pushed.digest, sent=pushed.sent)


@contextlib.contextmanager
def output_registry(reference: Reference, options: BuildOptions) -> Iterator[Registry]:
    """Connect to the registry of a build's output."""
    with Transport(ca_bundle=ca_file(options.mirrors)) as transport:
        yield Registry.of(reference, transport)


def output_layout(options: BuildOptions, state: Path) -> InLayout | None:
    """Return the layout that the embedded engine writes on this machine; None for other outputs."""
    target = options.target
    if target is None:
        return InLayout(path=own_layout(state, options.tags[0] if options.tags else "image"))
    return target if isinstance(target, InLayout) else None


def with_hash(tags: tuple[str, ...], own_tag: str) -> tuple[str, ...]:
    """Return the names in an engine's image store plus one with the hash tag."""
    return tuple(dict.fromkeys((*tags, *(hashed(name, own_tag) for name in tags[:1]))))


def hashed(name: str, own_tag: str) -> str:
    """Return the name of an image with its hash tag."""
    return f"{split_tag(name)[0]}:{own_tag}"


def _amounts(pushed: Pushed) -> str:
    sizes = {"sent": pushed.sent, "mounted": pushed.mounted, "already there": pushed.present}
    return ", ".join(f"{shown_size(size)} {what}" for what, size in sizes.items() if size or what == "sent")
