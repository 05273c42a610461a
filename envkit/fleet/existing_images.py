"""Find an existing image by its plan and lock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.engines.builder import EngineBuilder
from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.image.layout import read_layout
from envkit.lock.store import digest_of
from envkit.pipeline.publish import hashed, output_layout, output_reference, output_registry
from envkit.registry.documents import Documents

if TYPE_CHECKING:
    from envkit.engines.model import Builder, BuildOptions
    from envkit.image.name import InLayout, Reference
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
    layout = output_layout(options, state)
    return _in_layout(layout, required) if layout is not None else None


def _in_engine(
    builder: EngineBuilder, required: Mapping[str, str], options: BuildOptions, own_tag: str
) -> ExistingImage | None:
    if not options.tags:
        return None
    image = builder.engine.local(hashed(options.tags[0], own_tag))
    if image is None or not _has_labels(image.labels, required):
        return None
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
    with output_registry(reference, options) as registry:
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


def _labels(config: bytes) -> Mapping[str, Any]:
    try:
        labels = json.loads(config)["config"]["Labels"]  # null in an image without labels
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return labels if isinstance(labels, dict) else {}


def _has_labels(labels: Mapping[str, Any], required: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in required.items())
