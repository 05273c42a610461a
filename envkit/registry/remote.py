"""Images of registries. Manifests and configurations are cached by digest; layers are fetched on request."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envkit.ground.cache import BASES, in_use
from envkit.ground.errors import EngineError, IntegrityError
from envkit.ground.progress import counted
from envkit.image import spec
from envkit.image.document import INDEXES, MANIFESTS, descriptor, image_of, of_platform, parse_json, rows
from envkit.image.name import InRegistry
from envkit.registry.documents import Documents
from envkit.registry.download import fetch, from_registry
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.image.name import Reference
    from envkit.registry.registry import Manifest

_CHECK = "check the image's name and tag, or the proxy in between"


class Remote:
    """Images of registries with a cache; implements `envkit.image.opening.Registries`.

    Blobs are cached by digest in CACHE/blobs, together with those of base images.

    Args:
        cache: XDG_CACHE_HOME/envkit.
        ca_bundle: PEM file of trusted authorities; None = those of this machine.
    """

    def __init__(self, cache: Path, *, ca_bundle: str | None = None) -> None:
        self._cache, self._blobs = cache, BASES.at(cache)
        self._ca_bundle = None if ca_bundle == "none" else ca_bundle

    def resolve(self, reference: Reference) -> Reference:
        """Return the reference with the current digest of its tag.

        Raises:
            As `read`.
        """
        if reference.digest is not None:
            return reference
        with Transport(ca_bundle=self._ca_bundle) as transport:
            manifest = Registry.of(reference, transport).manifest(reference)
        if manifest is None:
            raise _missing(reference)
        return reference.at(manifest.digest)

    def read(self, reference: Reference) -> spec.Image:
        """Read an image's manifest and configuration; its layers have the paths that they will be fetched to.

        Raises:
            EngineError: the registry has no such image, or none for this machine, or refuses.
            IntegrityError: a document does not match its digest.
            EnvironmentProblem: it cannot be reached.
        """
        with Transport(ca_bundle=self._ca_bundle) as transport:
            documents = Documents(Registry.of(reference, transport), self._blobs)
            return read_remote(reference, documents, blobs=self._blobs)

    @contextlib.contextmanager
    def fetched(self, image: spec.Image, layers: Sequence[spec.Layer], reporter: Reporter) -> Iterator[None]:
        """Fetch the blobs of some layers to the cache and protect them from pruning until the context ends.

        Images of files have their layers already, so nothing is fetched for them.

        Raises:
            As `envkit.registry.download.fetch`.
        """
        if not isinstance(image.origin, InRegistry):
            yield
            return
        reference = image.origin.reference
        # The lock comes first: otherwise a prune could remove blobs between the download and their use.
        with in_use(self._cache), Transport(ca_bundle=self._ca_bundle) as transport:
            registry = Registry.of(reference, transport)
            items = [
                from_registry(registry, reference.repository, digest=layer.digest, size=layer.descriptor.size)
                for layer in layers
            ]
            reporter.step(f"fetch {counted(len(items), 'layer')} of {reference.place}")
            fetch(items, self._blobs, transport.policy, reporter.advance)
            yield


def read_remote(
    reference: Reference, documents: Documents, *, platform: str | None = None, blobs: Path | None = None
) -> spec.Image:
    """Read an image of a registry. The origin of its layers is the repository.

    Args:
        reference: the image.
        documents: the documents of its registry.
        platform: the platform to choose from an index, `linux/amd64`; None: the only one, or this machine's.
        blobs: the folder that layers will be fetched to; None: they have no path.

    Raises:
        EngineError: the image does not exist, or not for the platform, or the registry refuses.
        IntegrityError: a document does not match its digest, or the manifest does not match the configuration.
        EnvironmentProblem: the registry cannot be reached.
    """
    manifest = documents.manifest(reference)
    if manifest is None:
        raise _missing(reference)
    return image_at(manifest, reference, documents, platform=platform, blobs=blobs)


def image_at(
    manifest: Manifest,
    reference: Reference,
    documents: Documents,
    *,
    platform: str | None = None,
    blobs: Path | None = None,
) -> spec.Image:
    """Return the image of a manifest or index; see `read_remote`."""
    if manifest.media_type in INDEXES:
        where = f"the index of {reference}"
        row = of_platform(rows(_parsed(manifest, where), where), str(reference), platform)
        inner = documents.manifest(reference.at(row.digest))
        if inner is None:
            raise EngineError(
                f"{reference} lists {row.digest}, which is not in its registry", hint="push the image again"
            )
        # The specification allows nested indexes, but no image uses them, and a registry could serve an endless chain.
        if inner.media_type in INDEXES:
            raise IntegrityError(f"{reference} is an index that lists another index", hint=_CHECK)
        manifest = inner
    if manifest.media_type not in MANIFESTS:
        media_type = manifest.media_type or "without a media type"
        raise EngineError(f"{reference} is not an image ({media_type})", hint=_CHECK)
    resolved = reference.at(manifest.digest)
    where = f"the manifest of {resolved}"
    config = documents.config(resolved, descriptor(_parsed(manifest, where).get("config"), where).digest)
    return image_of(
        manifest.data,
        config,
        str(resolved),
        blob=lambda row: None if blobs is None else blobs / row.digest.removeprefix("sha256:"),
        holder=reference.place,
        tags=(f"{reference.place}:{reference.tag}",) if reference.tag else (),
        origin=InRegistry(reference=replace(resolved, tag=None)),
    )


def _missing(reference: Reference) -> EngineError:
    return EngineError(f"there is no image {reference}", hint="check the image's name and tag")


def _parsed(manifest: Manifest, where: str) -> dict[str, Any]:
    """Parse a document of a registry. Invalid JSON is an EngineError: it can be a proxy's page, not a damaged image."""
    try:
        return parse_json(manifest.data, where)
    except IntegrityError as error:
        raise EngineError(error.message, hint=_CHECK) from error
