"""The image that is attested or inspected: its tag is resolved once, then only the digest is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.image import spec
from envkit.image.document import INDEXES, MANIFESTS, config_fault, parse_json
from envkit.registry.referrers import read_blob
from envkit.registry.registry import MAX_MANIFEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.image.name import Reference
    from envkit.registry.registry import Registry

PLAN_LABEL, LOCK_LABEL = f"{LABEL_PREFIX}.plan", f"{LABEL_PREFIX}.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image in a registry, for one platform."""

    reference: Reference  # with the digest
    descriptor: spec.Descriptor  # of the manifest
    id: str  # digest of the configuration, by which engines identify the image
    config: Mapping[str, Any]
    layer_sizes: tuple[int, ...]  # bytes of the blobs, lowest layer first

    @property
    def digest(self) -> str:
        """The digest of the manifest, by which registries identify the image."""
        return self.descriptor.digest

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the image."""
        return labels_of(self.config)


def find_subject(reference: Reference, registry: Registry) -> Subject:
    """Return the image that a name refers to now.

    Raises:
        EngineError: the image does not exist, or the registry refuses.
        IntegrityError: a document does not match its digest.
        EnvironmentProblem: the registry is unreachable.
        UsageError: the name refers to several images.
    """
    manifest = registry.manifest(reference)
    if manifest is None:
        raise EngineError(f"there is no image {reference}", hint="check the image's name and tag")
    tree = parse_json(manifest.data, f"the manifest of {reference}")
    if manifest.media_type in INDEXES:
        raise UsageError(
            f"{reference} is an index of several images; select one of them",
            hint=f"use a digest: {_first(tree, reference)}",
        )
    if manifest.media_type not in MANIFESTS:
        raise EngineError(
            f"{reference} is {manifest.media_type or 'nothing'!r:.80}, not an image", hint="check the image's name"
        )
    if "manifests" in tree or tree.get("mediaType", manifest.media_type) != manifest.media_type:
        # Other clients may follow the other media type and get another image by the same digest.
        raise IntegrityError(
            f"{reference}: the registry says {manifest.media_type}, but the manifest itself has another media type",
            hint="push the image again",
        )
    # From here on by digest, because the tag may move.
    pinned = reference.at(manifest.digest)
    row = tree.get("config")
    data = read_blob(registry, pinned, row, limit=MAX_MANIFEST)
    config = parse_json(data, f"the configuration of {reference}")
    if not isinstance(config.get("rootfs"), dict):
        raise EngineError(f"{reference} is not a container image: it has no layers", hint="check the image's name")
    fault = config_fault(config)
    if fault is not None:
        raise IntegrityError(f"the configuration of {reference}: {fault}", hint="build the image again")
    layers = tree.get("layers")
    sizes = [layer.get("size") for layer in (layers if isinstance(layers, list) else ()) if isinstance(layer, dict)]
    return Subject(
        reference=pinned,
        descriptor=spec.Descriptor(media_type=manifest.media_type, digest=manifest.digest, size=len(manifest.data)),
        id=spec.sha256(data),
        config=config,
        layer_sizes=tuple(size for size in sizes if isinstance(size, int)),
    )


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an image's configuration."""
    settings = config.get("config")
    labels = settings.get("Labels") if isinstance(settings, dict) else None
    return {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}


def _first(tree: Mapping[str, Any], reference: Reference) -> str:
    rows = tree.get("manifests")
    digests = [str(row.get("digest")) for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict)]
    return " ".join(f"{reference.place}@{digest:.80}" for digest in digests[:3]) or "it lists none"
