"""The ways to name an image that lies in files or in a registry, and its layers, each read only when asked for.

    oci:DIR[:TAG]   oci:DIR@DIGEST   docker-archive:FILE[:TAG]
    registry:HOST/NAME[:TAG][@DIGEST]   HOST/NAME[:TAG][@DIGEST]

In the last form HOST has a dot or a port, or is `localhost`. Any other text is the name of an engine's image.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envkit.attest.content import Layer
from envkit.ground.paths import cache_dir
from envkit.ground.progress import Reporter, Silent
from envkit.image.tarstream import Source
from envkit.run.rootless.archive import read_archive
from envkit.run.rootless.blobs import tar_bytes
from envkit.run.rootless.image import FileImage
from envkit.run.rootless.layout import read_layout
from envkit.run.rootless.reference import LAYOUT
from envkit.run.rootless.reference import parse_reference as parse_file
from envkit.run.rootless.remote import PREFIX, Remote, is_remote, parse_remote

REGISTRY = "registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How images are reached."""

    runner: str = "auto"  # whose images a plain name means: auto, docker or podman
    ca_bundle: str | None = None  # PEM file of authorities to trust
    state: Path | None = None  # where builds of this machine keep their locks and plans; None: nowhere
    cache: Path | None = None  # where what comes from registries is kept; None: this user's cache
    layers: bool = False  # fetch a registry's layers where nothing else tells the packages
    reporter: Reporter = field(default_factory=Silent)


class Opened:
    """An image whose configuration is read and whose layers can be."""

    def __init__(self, image: FileImage, kind: str, remote: Remote | None, reporter: Reporter) -> None:
        self._image, self._remote, self._reporter = image, remote, reporter
        self.kind = kind  # 'oci' | 'docker-archive' | 'registry'
        self.fetched = 0  # bytes of layers that were downloaded until now

    @property
    def id(self) -> str:
        """Digest of the configuration."""
        return self._image.id

    @property
    def digest(self) -> str | None:
        """Digest of the manifest, None where there is none."""
        _, sign, digest = self._image.origin.rpartition("@")
        return digest if sign and self.kind != "docker-archive" else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration."""
        return self._image.config

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a container is started with, labels included."""
        return self._image.settings

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Lowest first."""
        rows = self._image.layers
        return tuple(
            Layer(diff_id=one.diff_id, digest=one.blob.digest, size=one.blob.size, made_by=made)
            for one, made in zip(rows, _history(self.config, len(rows)), strict=True)
        )

    @property
    def size(self) -> int:
        """Bytes of the configuration and of all blobs, each counted once."""
        sizes = {one.digest or one.diff_id: one.size or 0 for one in self.layers}
        return sum(sizes.values()) + len(self._image.config_bytes)

    def cost(self, place: int) -> int:
        """Bytes that have to be downloaded to read a layer; 0 for what lies here."""
        blob = self._image.layers[place].blob
        return 0 if self._remote is None or blob.path.is_file() else blob.size

    @contextmanager
    def tar(self, place: int) -> Iterator[Source]:
        """A layer's tar. On leaving, all of it is read and has the promised digests.

        Raises:
            EngineError: it cannot be read, or the registry refuses.
            IntegrityError: its bytes are not what the digests promise.
            EnvironmentProblem: the registry cannot be reached, or the disk is full.
        """
        layer, cost = self._image.layers[place], self.cost(place)
        if self._remote is None:
            with tar_bytes(layer, threading.Event()) as stream:
                yield Source(stream)
            return
        with self._remote.at_hand(self._image, (layer,), self._reporter):
            self.fetched += cost
            with tar_bytes(layer, threading.Event()) as stream:
                yield Source(stream)


def is_registry(text: str) -> bool:
    """Whether a text names an image of a registry, with the registry in it."""
    first, slash, _ = text.partition("/")
    return is_remote(text) or (bool(slash) and ("." in first or ":" in first or first == "localhost"))


def open_image(text: str, access: Access) -> Opened | None:
    """The image of a name; None where the name is for an engine to know. Layers are not read yet.

    Raises:
        EngineError: there is no such image, or the registry refuses.
        IntegrityError: a document is not what its digest promises.
        EnvironmentProblem: the registry cannot be reached.
        UsageError: the place holds several images and the name means none of them, or it is no name.
    """
    file = parse_file(text)
    if file is not None:
        image = read_layout(file) if file.kind == LAYOUT else read_archive(file)
        return Opened(image, file.kind, None, access.reporter)
    if not is_registry(text):
        return None
    reference = parse_remote(text if is_remote(text) else f"{PREFIX}{text}")
    remote = Remote(access.cache or cache_dir(), ca_bundle=access.ca_bundle)
    return Opened(remote.read(reference), REGISTRY, remote, access.reporter)


def _history(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """What the history says of each layer, lowest first; empty texts where it tells of another number of layers."""
    found = config.get("history")
    rows = [row for row in found if isinstance(row, dict) and not row.get("empty_layer")] if found else []
    return tuple(str(row.get("created_by") or "") for row in rows) if len(rows) == layers else ("",) * layers
