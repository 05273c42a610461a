"""Find an existing image by its plan and lock, and set the tags of an image in a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.engines.builder import EngineBuilder
from envkit.engines.host_environment import ca_file
from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.state import own_layout
from envkit.image.layout import read_layout
from envkit.image.name import InLayout, split_tag
from envkit.lock.store import digest_of
from envkit.pipeline.pushing import output_reference
from envkit.registry.documents import Documents
from envkit.registry.registry import Registry
from envkit.registry.tagging import move_tag
from envkit.registry.transport import Transport

if TYPE_CHECKING:
    from envkit.engines.model import Builder, BuildOptions, BuiltImage
    from envkit.image.name import Reference
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingImage:
    """An image that need not be built."""

    digest: str | None  # manifest digest
    place: str  # 'host/name@sha256:...', 'oci:DIR', or an engine's id


def find(
    builder: Builder, plan: BuildPlan, lock: Lock | None, *, options: BuildOptions, own_tag: str, state: Path
) -> ExistingImage | None:
    """Return the image of this plan and lock if it is where the build would put it; None if it has to be built.

    The image's labels must name both; a tag alone is not enough. Without a lock the result is always None, because the
    contents of the build are not known in advance.

    Raises:
        EngineError: the registry refuses.
        EnvironmentProblem: the registry or the engine cannot be reached.
    """
    if lock is None:
        return None
    required = {f"{LABEL_PREFIX}.plan": plan.digest, f"{LABEL_PREFIX}.lock": digest_of(lock)} | dict(options.labels)
    reference = output_reference(options)
    if reference is not None:
        return _in_registry(replace(reference, tag=own_tag), required, options)
    if isinstance(builder, EngineBuilder):
        return _in_engine(builder, required, options, own_tag)
    layout = _layout(options, state)
    return _in_layout(layout, required) if layout is not None else None


class PendingImage:
    """Hides an image that stays on this machine from `find` until its verification has passed.

    In an engine, the image gets the hash as a name only then. Beside a layout, the file `NAME.unproved` marks it.

    Args:
        builder: the builder of the image.
        options: its names and its output.
        own_tag: its hash tag.
        state: the state folder.
        verify: whether the image is verified; if not, `find` returns it as soon as it is built.
    """

    def __init__(
        self, builder: Builder, options: BuildOptions, *, own_tag: str, state: Path, verify: bool = True
    ) -> None:
        engine = builder.engine if isinstance(builder, EngineBuilder) else None
        self._engine = engine if verify else None
        self._options, self._own_tag = options, own_tag
        layout = _layout(options, state) if verify and engine is None else None
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
        if self._engine is not None:
            return self._options
        if self._mark is not None:
            # Before the layout exists, so that a killed run leaves none without a mark.
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        return replace(self._options, tags=with_hash(self._options.tags, self._own_tag))

    def end(self, built: BuiltImage) -> None:
        """Make the image visible to `find`.

        Raises:
            EngineError: the engine refuses the name.
        """
        if self._engine is not None:
            for image_name in self._options.tags[:1]:
                self._engine.tag(built.id, _hashed(image_name, self._own_tag))
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)


def set_output_tag(existing: ExistingImage, options: BuildOptions, own_tag: str) -> None:
    """Set the tag of a registry output to an existing image, as a build would have done.

    Raises:
        EngineError: the tag names another image, or the registry refuses.
    """
    reference = output_reference(options)
    if reference is None or reference.tag == own_tag:
        return
    assert existing.digest is not None
    with _registry(reference, options) as registry:
        manifest = registry.manifest(reference)
        if manifest is None or manifest.digest != existing.digest:
            move_tag(reference, existing.digest, registry, replace_tag=options.replace_tag)


def tag(digest: str, options: BuildOptions, own_tag: str) -> None:
    """Set both tags of an image that was pushed by digest.

    The hash tag comes last: `find` looks for it, so it must not exist before the output's own tag is set.

    Raises:
        EngineError: a tag names another image, or the registry refuses.
        IntegrityError: the image is not in the registry.
    """
    reference = output_reference(options)
    assert reference is not None
    with _registry(reference, options) as registry:
        for tag_name in dict.fromkeys((reference.tag, own_tag)):
            move_tag(replace(reference, tag=tag_name), digest, registry, replace_tag=options.replace_tag)


def with_hash(tags: tuple[str, ...], own_tag: str) -> tuple[str, ...]:
    """Return the names in an engine's image store plus one with the hash tag."""
    return tuple(dict.fromkeys((*tags, *(_hashed(image_name, own_tag) for image_name in tags[:1]))))


def _layout(options: BuildOptions, state: Path) -> InLayout | None:
    """Return the layout that the embedded engine writes on this machine; None for other outputs."""
    target = options.target
    if target is None:
        return InLayout(path=own_layout(state, options.tags[0] if options.tags else "image"))
    return target if isinstance(target, InLayout) else None


def _hashed(tag: str, own_tag: str) -> str:
    return f"{split_tag(tag)[0]}:{own_tag}"


def _in_engine(
    builder: EngineBuilder, required: Mapping[str, str], options: BuildOptions, own_tag: str
) -> ExistingImage | None:
    if not options.tags:
        return None
    image = builder.engine.local(_hashed(options.tags[0], own_tag))
    if image is None or not _has_labels(image.labels, required):
        return None
    for image_name in options.tags:
        builder.engine.tag(image.id, image_name)
    return ExistingImage(digest=None, place=image.id)


def _in_layout(layout: InLayout, required: Mapping[str, str]) -> ExistingImage | None:
    try:
        image = read_layout(layout)
    # A layout that is missing, lacks a layer or is damaged is built again.
    except (EngineError, UsageError, IntegrityError):
        return None
    return (
        ExistingImage(digest=image.digest, place=f"{layout.kind}:{layout.path}")
        if _has_labels(_labels(image.config), required)
        else None
    )


def _in_registry(reference: Reference, required: Mapping[str, str], options: BuildOptions) -> ExistingImage | None:
    with _registry(reference, options) as registry:
        manifest = registry.manifest(reference)
        if manifest is None:
            return None
        try:
            digest = str(json.loads(manifest.data)["config"]["digest"])
            config = Documents(registry, None).config(reference, digest)
        # Anyone who may push can set this tag: to an index, which has no `config`, or to JSON that is nested too
        # deeply.
        except (EngineError, IntegrityError, ValueError, KeyError, TypeError, RecursionError):
            return None
    if not _has_labels(_labels(config), required):
        return None
    return ExistingImage(digest=manifest.digest, place=f"{reference.place}@{manifest.digest}")


@contextmanager
def _registry(reference: Reference, options: BuildOptions) -> Iterator[Registry]:
    with Transport(ca_bundle=ca_file(options.mirrors)) as transport:
        yield Registry.of(reference, transport)


def _labels(config: bytes) -> Mapping[str, Any]:
    try:
        labels = json.loads(config)["config"]["Labels"]  # null in an image without labels
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return labels if isinstance(labels, dict) else {}


def _has_labels(labels: Mapping[str, Any], required: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in required.items())
