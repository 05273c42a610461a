"""Open images in files and registries by reference, or by an ID that a reference has led to before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.cache import REFERENCES, RUNS, UNPACKED
from envkit.ground.errors import EngineError
from envkit.ground.host import cores
from envkit.ground.progress import Reporter, counted
from envkit.ground.sizes import shown_size
from envkit.ground.store import write_atomic
from envkit.image import spec
from envkit.image.name import ARCHIVE, LAYOUT, PREFIX, ImageName, InArchive, InEngine, InLayout, InRegistry, image_name
from envkit.image.opening import read_file
from envkit.run.rootless.layered_tree import LayeredTree
from envkit.run.rootless.layers import UnpackedLayers

if TYPE_CHECKING:
    from envkit.registry.remote import Remote

_MOST_WORKERS = 4  # more would only wait for the disk
_HINT = f"envkit verify {LAYOUT}:DIR, {ARCHIVE}:FILE or {PREFIX}HOST/NAME:TAG"


class ImageStore:
    """Opens images and unpacks their layers."""

    def __init__(self, cache: Path, *, ca_bundle: str | None = None) -> None:
        self._cache = cache
        self._ca_bundle = ca_bundle
        self._layers = UnpackedLayers(cache)
        self._known: dict[str, spec.Image] = {}

    @cached_property
    def _remote(self) -> Remote:
        """Images in registries. Most commands run what is on this machine, and the client takes long to import."""
        from envkit.registry.remote import Remote  # noqa: PLC0415

        return Remote(self._cache, ca_bundle=self._ca_bundle)

    def open(self, name: ImageName) -> spec.Image:
        """Return the image of a name, or of an ID known from an earlier one. Its layers are not read yet.

        Raises:
            EngineError: the image does not exist.
            IntegrityError: its files do not match their digests.
            UsageError: the folder or file has several images and the name selects none.
        """
        ident = name.id if isinstance(name, InEngine) else None
        if ident is not None and ident in self._known:
            return self._known[ident]
        origin = name if ident is None else self._origin(ident)
        image = self._read(origin)
        if ident not in (None, image.id):
            raise EngineError(f"image {ident} no longer exists: {origin.typed} is now {image.id}", hint=_HINT)
        self._known[image.id] = image
        # Only later runs need the note, and an image in a folder of this run is gone by then.
        if isinstance(image.origin, InLayout) and image.origin.path.is_relative_to(RUNS.at(self._cache)):
            return image
        with contextlib.suppress(OSError):
            write_atomic(_reference(self._cache, image.id), str(image.origin).encode())
        return image

    def stack(self, image: spec.Image, reporter: Reporter) -> tuple[LayeredTree, int]:
        """Return the image's unpacked layers and the total size of their tars in bytes.

        Raises:
            EngineError: it has no layer.
            IntegrityError: a layer does not match its digests.
            EnvironmentProblem: the disk is full.
        """
        if not image.layers:
            raise EngineError(f"{image.origin} has no layers, so it cannot be run", hint=_HINT)
        missing = {layer.diff_id: layer for layer in image.layers if self._layers.find(layer.diff_id) is None}
        if missing:
            UNPACKED.sweep(self._cache)
            self._unpack(image, tuple(missing.values()), reporter)
        layers = tuple(self._layers.take(layer, threading.Event()) for layer in image.layers)
        return LayeredTree(layers=layers), sum(layer.size for layer in layers)

    def _read(self, name: ImageName) -> spec.Image:
        match name:
            case InRegistry(reference=reference):
                return self._remote.read(reference)
            case InLayout() | InArchive():
                return read_file(name)
            case _:
                raise EngineError(
                    f"there is no image {name.typed!r:.200}: bubblewrap opens {LAYOUT}:DIR, {ARCHIVE}:FILE and "
                    f"{PREFIX}HOST/NAME:TAG",
                    hint=_HINT,
                )

    def _unpack(self, image: spec.Image, layers: Sequence[spec.Layer], reporter: Reporter) -> None:
        total = sum(layer.descriptor.size for layer in layers)
        with self._remote.fetched(image, layers, reporter):
            reporter.step(f"unpack {counted(len(layers), 'layer')} ({shown_size(total)})")
            stop = threading.Event()
            pool = ThreadPoolExecutor(min(_MOST_WORKERS, cores()), thread_name_prefix="unpack")
            try:
                # Largest first: if one started last, the other cores would be idle while it is unpacked.
                ranked = sorted(layers, key=lambda layer: -layer.descriptor.size)
                waiting = {pool.submit(self._layers.take, layer, stop): layer.descriptor.size for layer in ranked}
                done = 0
                for ended in as_completed(waiting):
                    ended.result()
                    done += waiting[ended]
                    reporter.advance(done, total)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _origin(self, ident: str) -> ImageName:
        try:
            return image_name(_reference(self._cache, ident).read_text())
        except OSError:
            raise EngineError(f"there is no image {ident} for bubblewrap", hint=_HINT) from None


def _reference(cache: Path, ident: str) -> Path:
    return REFERENCES.at(cache, ident.removeprefix("sha256:"))
