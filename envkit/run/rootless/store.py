"""Open images in files and registries by reference, or by an ID that a reference has led to before.

CACHE/images/HEX    the reference under which the image with this ID was last opened
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from envkit.ground.errors import EngineError
from envkit.ground.host import cores
from envkit.ground.progress import Reporter, counted
from envkit.ground.store import write_atomic
from envkit.image import spec
from envkit.image.opening import read_file
from envkit.image.reference import ARCHIVE, LAYOUT, PREFIX, is_digest, is_remote, parse_file, parse_remote
from envkit.registry.remote import Remote
from envkit.run.rootless.layers import LayerCache
from envkit.run.rootless.stack import Stack

_MOST_WORKERS = 4  # more would only wait for the disk
_HINT = f"envkit verify {LAYOUT}:DIR, {ARCHIVE}:FILE or {PREFIX}HOST/NAME:TAG"


class ImageStore:
    """Opens images and unpacks their layers."""

    def __init__(self, folder: Path, *, ca_bundle: str | None = None) -> None:
        self._folder = folder
        self._remote = Remote(folder, ca_bundle=ca_bundle)
        self._layers = LayerCache(folder)
        self._known: dict[str, spec.Image] = {}

    def open(self, text: str) -> spec.Image:
        """Return the image of a reference or of an ID known from an earlier one. Its layers are not read yet.

        Raises:
            EngineError: the image does not exist.
            IntegrityError: its files do not match their digests.
            UsageError: the folder or file has several images and the reference selects none.
        """
        if text in self._known:
            return self._known[text]
        reference = self._origin(text) if is_digest(text) else text
        image = self._read(reference)
        if is_digest(text) and image.id != text:
            raise EngineError(f"image {text} no longer exists: {reference} is now {image.id}", hint=_HINT)
        self._known[image.id] = image
        # Only later runs need the note, and an image in a folder of this run is gone by then.
        if image.origin.startswith(f"{LAYOUT}:{self._folder / 'runs'}/"):
            return image
        with contextlib.suppress(OSError):
            write_atomic(self._folder / "images" / image.id.removeprefix("sha256:"), image.origin.encode())
        return image

    def stack(self, image: spec.Image, reporter: Reporter) -> tuple[Stack, int]:
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
            self._layers.sweep()
            self._unpack(image, tuple(missing.values()), reporter)
        layers = tuple(self._layers.take(layer, threading.Event()) for layer in image.layers)
        return Stack(layers=layers), sum(layer.size for layer in layers)

    def _read(self, text: str) -> spec.Image:
        if is_remote(text):
            return self._remote.read(parse_remote(text))
        reference = parse_file(text)
        if reference is None:
            raise EngineError(
                f"there is no image {text!r:.200}: bubblewrap opens {LAYOUT}:DIR, {ARCHIVE}:FILE and "
                f"{PREFIX}HOST/NAME:TAG",
                hint=_HINT,
            )
        return read_file(reference)

    def _unpack(self, image: spec.Image, layers: Sequence[spec.Layer], reporter: Reporter) -> None:
        total = sum(layer.descriptor.size for layer in layers)
        with self._remote.fetched(image, layers, reporter):
            reporter.step(f"unpack {counted(len(layers), 'layer')} ({total / 1e6:.0f} MB)")
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

    def _origin(self, ident: str) -> str:
        try:
            return (self._folder / "images" / ident.removeprefix("sha256:")).read_text()
        except OSError:
            raise EngineError(f"there is no image {ident} for bubblewrap", hint=_HINT) from None
