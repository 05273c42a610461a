"""`registry:HOST/NAME[:TAG|@DIGEST]`: images that lie in a registry, run without any engine.

Manifest and configuration are read at once, layers are fetched when they are to be unpacked; all of them are kept by
their digest in CACHE/blobs, where the embedded engine keeps those of base images.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from envkit.ground.errors import EngineError
from envkit.ground.progress import Reporter, counted
from envkit.image.reference import Reference, parse_reference
from envkit.registry.documents import Documents
from envkit.registry.download import fetch, from_registry
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from envkit.run.rootless.image import Blob, FileImage, Layer, damaged, digest_of, parse_config, parse_json
from envkit.run.rootless.layout import descriptor, of_this_machine, platform_here

PREFIX = "registry:"
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


def is_remote(text: str) -> bool:
    """Whether a text names an image by its registry."""
    return text.startswith(PREFIX)


def parse_remote(text: str) -> Reference:
    """The image that `registry:HOST/NAME[:TAG|@DIGEST]` names.

    Raises:
        UsageError: it names none.
    """
    return parse_reference(text.removeprefix(PREFIX).removeprefix("//"), what=repr(text[:200]))


class Remote:
    """Images of registries, by way of a cache.

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
            found = Registry.of(reference, transport).manifest(reference)
        if found is None:
            raise _missing(reference)
        return reference.at(found.digest)

    def read(self, reference: Reference) -> FileImage:
        """An image's manifest and configuration; its layers are not fetched yet.

        Raises:
            EngineError: the registry has no such image, or none for this machine, or refuses.
            IntegrityError: its bytes are not what their digests promise.
            EnvironmentProblem: it cannot be reached.
        """
        with Transport(ca_bundle=self._ca_bundle) as transport:
            documents = Documents(Registry.of(reference, transport), self._blobs)
            tree, place = _manifest(reference, documents)
            config = descriptor(tree.get("config"), f"the manifest of {place}")
            data = documents.config(place, config["digest"])
        settings, diff_ids = parse_config(data, f"the configuration of {place}")
        listed = tree.get("layers")
        if not isinstance(listed, list) or len(listed) != len(diff_ids):
            raise damaged(f"{place}: the manifest's layers are not those of its configuration ({len(diff_ids)})")
        rows = [descriptor(row, f"the manifest of {place}") for row in listed]
        return FileImage(
            id=digest_of(data),
            config=settings,
            config_bytes=data,
            tags=(f"{reference.place}:{reference.tag}",) if reference.tag else (),
            layers=tuple(
                Layer(diff_id=diff_id, blob=self._blob(row["digest"], row["size"]))
                for diff_id, row in zip(diff_ids, rows, strict=True)
            ),
            origin=f"{PREFIX}{place.place}@{place.digest}",
        )

    @contextlib.contextmanager
    def at_hand(self, image: FileImage, layers: Sequence[Layer], reporter: Reporter) -> Iterator[None]:
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
                from_registry(registry, reference.repository, digest=str(one.blob.digest), size=one.blob.size)
                for one in layers
            ]
            reporter.step(f"fetch {counted(len(items), 'layer')} of {reference.place}")
            fetch(items, self._blobs, transport.policy, reporter.advance)
            yield

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep away what prunes the cache."""
        folder = self._cache / "layers"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)

    def _blob(self, digest: str, size: int) -> Blob:
        return Blob(path=self._blobs / digest.removeprefix("sha256:"), offset=0, size=size, digest=digest)


def _manifest(reference: Reference, documents: Documents) -> tuple[dict[str, object], Reference]:
    """The manifest for this machine and where it is by digest; through an index of platforms where there is one."""
    found = documents.manifest(reference)
    if found is None:
        raise _missing(reference)
    tree, place = parse_json(found.data, f"the manifest of {reference}"), reference.at(found.digest)
    if found.media_type not in _INDEXES:
        return tree, place
    listed = tree.get("manifests")
    rows = [descriptor(row, f"the index of {place}") for row in (listed if isinstance(listed, list) else [])]
    # Beside its images an index may list what is attached to them.
    row = rows[0] if len(rows) == 1 else of_this_machine(rows)
    if row is None:
        raise EngineError(f"{reference} has no image for {platform_here()}", hint="build it for this platform")
    place = reference.at(row["digest"])
    inner = documents.manifest(place)
    if inner is None:
        raise EngineError(f"{reference} names {row['digest']}, which its registry lacks", hint="push the image again")
    if inner.media_type in _INDEXES:
        raise damaged(f"{reference}: an index within an index")
    return parse_json(inner.data, f"the manifest of {place}"), place


def _missing(reference: Reference) -> EngineError:
    return EngineError(f"there is no image {reference}", hint="check the image's name and tag")
