"""Open an image of a layout, an archive or a registry by its name. Layers are read only on request.

Registries are reached through the protocol `Registries`, which
`envkit.registry.remote` implements: this module depends on no HTTP client.
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
from envkit.image.name import ImageName, InArchive, InLayout, InRegistry, Reference
from envkit.image.tarstream import Source


class Registries(Protocol):
    """Access to images in registries."""

    def read(self, reference: Reference) -> spec.Image:
        """Read an image's manifest and configuration; its layers are not fetched."""

    def fetched(
        self, image: spec.Image, layers: Sequence[spec.Layer], reporter: Reporter
    ) -> contextlib.AbstractContextManager[None]:
        """Fetch the blobs of some layers to the paths in the layers, and keep them until the context ends."""


class Opened:
    """An image whose configuration was read and whose layers can be read."""

    def __init__(
        self,
        image: spec.Image,
        name: InLayout | InArchive | InRegistry,
        registries: Registries | None,
        reporter: Reporter,
    ) -> None:
        self._registries, self._reporter = registries, reporter
        self.image, self.name = image, name
        self.fetched = 0  # bytes of layers downloaded so far
        self.tar_sizes: dict[int, int] = {}  # bytes of the tars read so far, by the layer's index

    @property
    def id(self) -> str:
        """The digest of the configuration."""
        return self.image.id

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration."""
        return self.image.tree

    @property
    def digest(self) -> str | None:
        """The digest of the manifest; None if there is none."""
        return None if isinstance(self.name, InArchive) else self.image.digest

    @property
    def layers(self) -> tuple[spec.Layer, ...]:
        """The layers, lowest first."""
        return self.image.layers

    @property
    def size(self) -> int:
        """The size of the configuration and all blobs in bytes, equal blobs counted once."""
        # Layers of archives have no digest of the blob.
        sizes = {layer.digest or layer.diff_id: layer.descriptor.size for layer in self.layers}
        return sum(sizes.values()) + len(self.image.config)

    def cost(self, index: int) -> int:
        """Return the bytes that reading a layer would download; 0 if its blob is a local file."""
        layer = self.layers[index]
        return 0 if self._registries is None or (layer.blob and layer.blob.is_file()) else layer.descriptor.size

    @contextlib.contextmanager
    def tar(self, index: int) -> Iterator[Source]:
        """Yield a layer's tar. When the context ends, all of it was read and the digests match.

        Raises:
            EngineError: it cannot be read, or the registry refuses.
            IntegrityError: its bytes do not match the digests.
            EnvironmentProblem: the registry cannot be reached, or the disk is full.
        """
        layer, cost = self.layers[index], self.cost(index)
        with contextlib.ExitStack() as stack:
            if self._registries is not None:
                stack.enter_context(self._registries.fetched(self.image, (layer,), self._reporter))
                self.fetched += cost
            # The event is never set: only runners stop the unpacking of a layer.
            with tar_bytes(layer, threading.Event()) as stream:
                yield Source(stream)
            self.tar_sizes[index] = stream.size


def read_file(name: InLayout | InArchive) -> spec.Image:
    """Read the image of a layout or an archive; see `read_layout` and `read_archive`."""
    return read_layout(name) if isinstance(name, InLayout) else read_archive(name)


def open_file(name: InLayout | InArchive, reporter: Reporter) -> Opened:
    """Open the image of a layout or an archive; see `read_file`."""
    return Opened(read_file(name), name, None, reporter)


def open_image(name: ImageName, registries: Registries, reporter: Reporter) -> Opened | None:
    """Open the image of a name; return None for an engine's image, and for this machine's Python.

    Raises:
        EngineError: the image does not exist, or the registry refuses.
        IntegrityError: a document does not match its digest.
        EnvironmentProblem: the registry cannot be reached.
        UsageError: the file or folder has several images and the name selects none.
    """
    match name:
        case InLayout() | InArchive():
            return open_file(name, reporter)
        case InRegistry(reference=reference):
            return Opened(registries.read(reference), name, registries, reporter)
        case _:
            return None


def described(image: spec.Image, size: int) -> Mapping[str, Any]:
    """Return an image's configuration with the keys of `Runner.inspect`."""
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
