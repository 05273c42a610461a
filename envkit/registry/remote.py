"""Images of registries as values: documents are read at once and kept by digest, layers are fetched when asked for."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from envkit.ground import store
from envkit.ground.errors import EngineError, IntegrityError
from envkit.ground.progress import counted
from envkit.image import spec
from envkit.image.document import INDEXES, MANIFESTS, descriptor, image_of, of_platform, parse_json, rows
from envkit.image.reference import PREFIX, is_remote, parse_remote
from envkit.registry.documents import Documents
from envkit.registry.download import fetch, from_registry
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.image.reference import Reference
    from envkit.registry.registry import Manifest

_CHECK = "check the image's name and tag, or the proxy in between"


class Remote:
    """Images of registries, by way of a cache: the `Registries` of `envkit.image.opening`.

    Blobs are kept by their digest in CACHE/blobs, where the embedded engine keeps those of base images.

    Args:
        cache: XDG_CACHE_HOME/envkit.
        ca_bundle: PEM file of authorities to trust; None = those of this machine.
    """

    def __init__(self, cache: Path, *, ca_bundle: str | None = None) -> None:
        self._cache, self._blobs = cache, cache / "blobs"
        self._ca_bundle = None if ca_bundle == "none" else ca_bundle

    def resolve(self, reference: Reference) -> Reference:
        """The same name with the digest that its tag has now.

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
        """An image's manifest and configuration; its layers are named by the files that will hold them.

        Raises:
            EngineError: the registry has no such image, or none for this machine, or refuses.
            IntegrityError: its bytes are not what their digests promise.
            EnvironmentProblem: it cannot be reached.
        """
        with Transport(ca_bundle=self._ca_bundle) as transport:
            documents = Documents(Registry.of(reference, transport), self._blobs)
            return read_remote(reference, documents, blobs=self._blobs)

    @contextlib.contextmanager
    def fetched(self, image: spec.Image, layers: Sequence[spec.Layer], reporter: Reporter) -> Iterator[None]:
        """See that the blobs of some layers are in the cache, and keep them there; files lie where they lie.

        Raises:
            As `envkit.registry.download.fetch`.
        """
        if not is_remote(image.origin):
            yield
            return
        reference = parse_remote(image.origin)
        with self._in_use(), Transport(ca_bundle=self._ca_bundle) as transport:
            registry = Registry.of(reference, transport)
            items = [
                from_registry(registry, reference.repository, digest=layer.digest, size=layer.descriptor.size)
                for layer in layers
            ]
            reporter.step(f"fetch {counted(len(items), 'layer')} of {reference.place}")
            fetch(items, self._blobs, transport.policy, reporter.advance)
            yield

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep away what prunes the cache."""
        # The one lock of the cache: `envkit cache prune` takes it alone before it removes blobs or layers.
        folder = self._cache / "layers"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with store.locked(folder, shared=True):
            yield


def read_remote(
    reference: Reference, documents: Documents, *, platform: str | None = None, blobs: Path | None = None
) -> spec.Image:
    """The image under a name. Every layer names the repository that holds it.

    Args:
        reference: the name.
        documents: of the image's registry.
        platform: which image of an index, `linux/amd64`; None: this machine's, or the only one.
        blobs: the folder in which layers will lie by their digest; None: they have no file.

    Raises:
        EngineError: the image does not exist, or not for the platform, or the registry refuses.
        IntegrityError: a document contradicts its digest, or layers and configuration each other.
        EnvironmentProblem: the registry cannot be reached.
    """
    manifest = documents.manifest(reference)
    if manifest is None:
        raise _missing(reference)
    return image_at(manifest, reference, documents, platform=platform, blobs=blobs)


def image_at(
    found: Manifest,
    reference: Reference,
    documents: Documents,
    *,
    platform: str | None = None,
    blobs: Path | None = None,
) -> spec.Image:
    """The image of a manifest or index. As `read_remote`."""
    if found.media_type in INDEXES:
        where = f"the index of {reference}"
        row = of_platform(rows(_parsed(found, where), where), str(reference), platform)
        inner = documents.manifest(reference.at(row.digest))
        if inner is None:
            raise EngineError(f"{reference} names {row.digest}, which its registry lacks", hint="push the image again")
        # The specification allows it, and no image has it: following it would let a registry send us in circles.
        if inner.media_type in INDEXES:
            raise IntegrityError(f"{reference}: an index within an index", hint=_CHECK)
        found = inner
    if found.media_type not in MANIFESTS:
        raise EngineError(f"{reference} is {found.media_type or 'nothing'}, not an image", hint=_CHECK)
    resolved = reference.at(found.digest)
    where = f"the manifest of {resolved}"
    config = documents.config(resolved, descriptor(_parsed(found, where).get("config"), where).digest)
    return image_of(
        found.data,
        config,
        str(resolved),
        blob=lambda row: None if blobs is None else blobs / row.digest.removeprefix("sha256:"),
        holder=reference.place,
        tags=(f"{reference.place}:{reference.tag}",) if reference.tag else (),
        origin=f"{PREFIX}{resolved.place}@{resolved.digest}",
    )


def _missing(reference: Reference) -> EngineError:
    return EngineError(f"there is no image {reference}", hint="check the image's name and tag")


def _parsed(manifest: Manifest, where: str) -> dict[str, Any]:
    """A document of the registry's; another answer, such as a proxy's page, is not a damaged image."""
    try:
        return parse_json(manifest.data, where)
    except IntegrityError as error:
        raise EngineError(error.message, hint=_CHECK) from error
