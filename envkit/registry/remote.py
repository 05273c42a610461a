"""An image of a registry as a value: its manifest and configuration are read, its layers are only named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.reference import is_digest
from envkit.registry.documents import Documents
from envkit.registry.registry import DOCKER_INDEX, DOCKER_MANIFEST

if TYPE_CHECKING:
    from envkit.image.reference import Reference
    from envkit.registry.registry import Manifest, Registry

_IMAGES = (spec.MANIFEST, DOCKER_MANIFEST)
_CHECK = "check the image's name and tag, and proxies in between"


def read_remote(reference: Reference, registry: Registry, architecture: str) -> spec.Image:
    """The image under a name. Where that is an index, the one for `architecture` ('amd64').

    Every layer names the repository that holds it, and has no blob.

    Raises:
        EngineError: there is no such image, none for the architecture, or the registry refuses.
        IntegrityError: a document contradicts its digest, or layers and configuration each other.
        EnvironmentProblem: the registry cannot be reached.
    """
    documents = Documents(registry, None)
    found = documents.manifest(reference)
    if found is not None and found.media_type in (spec.INDEX, DOCKER_INDEX):
        found = documents.manifest(reference.at(_chosen(found, reference, architecture)))
    if found is None:
        raise EngineError(f"there is no image {reference}", hint=_CHECK)
    if found.media_type not in _IMAGES:
        raise EngineError(f"{reference} is {found.media_type or 'nothing'}, not an image", hint=_CHECK)
    tree = _table(found.data, f"the manifest of {reference}")
    try:
        config = documents.config(reference, _digest(tree["config"]))
        diff_ids = _table(config, f"the configuration of {reference}")["rootfs"]["diff_ids"]
        layers = tuple(
            spec.Layer(
                descriptor=spec.Descriptor(
                    media_type=str(row["mediaType"]), digest=_digest(row), size=int(row["size"])
                ),
                diff_id=str(diff_id),
                made_by="",
                origin=reference.place,
            )
            for row, diff_id in zip(tree["layers"], diff_ids, strict=True)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"manifest and configuration of {reference} do not tell of the same layers", hint=_CHECK
        ) from error
    return spec.Image(manifest=found.data, config=config, layers=layers)


def _chosen(index: Manifest, reference: Reference, architecture: str) -> str:
    """The digest of an index's one image for an architecture."""
    rows = _table(index.data, f"the index of {reference}").get("manifests")
    images = [row for row in rows or () if isinstance(row, dict) and row.get("mediaType") in _IMAGES]
    fitting = [row for row in images if _platform(row) == f"linux/{architecture}"]
    if not fitting:
        have = ", ".join(sorted({_platform(row) for row in images})) or "none"
        raise EngineError(f"{reference} has no image for linux/{architecture}", hint=f"it has: {have:.200}")
    return _digest(fitting[0])


def _digest(row: Any) -> str:
    """The digest of a descriptor: what is asked for by another text is checked by nothing, and names no file."""
    found = row.get("digest") if isinstance(row, dict) else None
    if not is_digest(found):
        raise IntegrityError(f"{found!r:.100} is not a sha256 digest", hint=_CHECK)
    return str(found)


def _platform(row: dict[str, Any]) -> str:
    told = row.get("platform")
    return f"{told.get('os')}/{told.get('architecture')}" if isinstance(told, dict) else "unknown"


def _table(data: bytes, what: str) -> dict[str, Any]:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{what} is not JSON", hint=_CHECK) from error
    if not isinstance(tree, dict):
        raise EngineError(f"{what} is not a JSON object", hint=_CHECK)
    return tree
