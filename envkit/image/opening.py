"""Open an image by its name: from a layout, an archive or a registry. Layers are read only when asked for.

Every way to name one is in `envkit.image.reference`. Registries are reached through `Registries`, which
`envkit.registry.remote` implements, so that reading an image needs no network of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from envkit.ground.progress import Reporter
from envkit.image import spec
from envkit.image.archive import read_archive
from envkit.image.blobs import tar_bytes
from envkit.image.document import exposed_ports
from envkit.image.layout import read_layout
from envkit.image.reference import (
    ARCHIVE,
    LAYOUT,
    PREFIX,
    REGISTRY,
    FileReference,
    Reference,
    is_remote,
    names_registry,
    parse_file,
    parse_remote,
)
from envkit.image.tarstream import Source


class Registries(Protocol):
    """Images of registries."""

    def read(self, reference: Reference) -> spec.Image:
        """Return an image's documents; its layers are named, not fetched."""

    def at_hand(
        self, image: spec.Image, layers: Sequence[spec.Layer], reporter: Reporter
    ) -> contextlib.AbstractContextManager[None]:
        """Fetch the blobs of some layers, and keep them where the layers say for the length of a `with`."""


class Opened:
    """An image whose configuration is read and whose layers can be."""

    def __init__(self, image: spec.Image, kind: str, registries: Registries | None, reporter: Reporter) -> None:
        self._registries, self._reporter = registries, reporter
        self.image = image
        self.kind = kind  # 'oci' | 'docker-archive' | 'registry'
        self.fetched = 0  # bytes of layers that were downloaded until now
        self.read: dict[int, int] = {}  # bytes of the tars that were read, by the layer's place

    @property
    def id(self) -> str:
        """Digest of the configuration."""
        return self.image.id

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration."""
        return self.image.tree

    @property
    def digest(self) -> str | None:
        """Digest of the manifest, None where there is none."""
        return self.image.digest if self.kind != ARCHIVE else None

    @property
    def layers(self) -> tuple[spec.Layer, ...]:
        """Lowest first."""
        return self.image.layers

    @property
    def size(self) -> int:
        """Bytes of the configuration and of all blobs, each counted once."""
        sizes = {layer.digest or layer.diff_id: layer.descriptor.size for layer in self.layers}
        return sum(sizes.values()) + len(self.image.config)

    def cost(self, place: int) -> int:
        """Bytes that have to be downloaded to read a layer; 0 for what lies here."""
        layer = self.layers[place]
        return 0 if self._registries is None or (layer.blob and layer.blob.is_file()) else layer.descriptor.size

    @contextlib.contextmanager
    def tar(self, place: int) -> Iterator[Source]:
        """A layer's tar. On leaving, all of it is read and has the promised digests.

        Raises:
            EngineError: it cannot be read, or the registry refuses.
            IntegrityError: its bytes are not what the digests promise.
            EnvironmentProblem: the registry cannot be reached, or the disk is full.
        """
        layer, cost = self.layers[place], self.cost(place)
        with contextlib.ExitStack() as fetched:
            if self._registries is not None:
                fetched.enter_context(self._registries.at_hand(self.image, (layer,), self._reporter))
                self.fetched += cost
            with tar_bytes(layer, threading.Event()) as stream:
                yield Source(stream)
            self.read[place] = stream.size


def is_registry(text: str) -> bool:
    """Whether a text names an image of a registry, with the registry in it."""
    return is_remote(text) or names_registry(text)


def read_file(reference: FileReference) -> spec.Image:
    """The image of a layout or an archive. As `read_layout` and `read_archive`."""
    return read_layout(reference) if reference.kind == LAYOUT else read_archive(reference)


def open_file(reference: FileReference, reporter: Reporter) -> Opened:
    """The same with layers that can be read."""
    return Opened(read_file(reference), reference.kind, None, reporter)


def open_image(text: str, registries: Registries, reporter: Reporter) -> Opened | None:
    """The image of a name; None where the name is for an engine to know. Layers are not read yet.

    Raises:
        EngineError: the image does not exist, or the registry refuses.
        IntegrityError: a document is not what its digest promises.
        EnvironmentProblem: the registry cannot be reached.
        UsageError: the place holds several images and the name is not one of them, or it is not a valid name.
    """
    file = parse_file(text)
    if file is not None:
        return open_file(file, reporter)
    if not is_registry(text):
        return None
    reference = parse_remote(text if is_remote(text) else f"{PREFIX}{text}")
    return Opened(registries.read(reference), REGISTRY, registries, reporter)


def described(image: spec.Image, size: int) -> Mapping[str, Any]:
    """An image's configuration in the words of `Runner.inspect`."""
    settings = image.settings
    env = settings.get("Env")
    return {
        "id": image.id,
        "tags": image.tags,
        "labels": dict(settings.get("Labels") or {}),
        "env": dict(str(item).partition("=")[::2] for item in env) if isinstance(env, list) else {},
        "user": str(settings.get("User") or ""),
        "entrypoint": tuple(str(word) for word in settings.get("Entrypoint") or ()),
        "cmd": tuple(str(word) for word in settings.get("Cmd") or ()),
        "workdir": str(settings.get("WorkingDir") or ""),
        "ports": exposed_ports(settings),
        "architecture": str(image.tree.get("architecture") or ""),
        "os": str(image.tree.get("os") or ""),
        "size": size,
        "layers": tuple(layer.diff_id for layer in image.layers),
    }
