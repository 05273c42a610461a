"""Compress an engine's image for a registry: each layer becomes a reproducible gzip blob.

Engines store layers unpacked and save them as plain tars. zlib compresses chunks of fixed size, each as a gzip member
of its own, so all cores work and the bytes do not depend on their number. Equal layers give equal blobs, and the
registry skips blobs that it already has. The configuration is not changed, so the image ID stays the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from envkit.ground.errors import IntegrityError
from envkit.ground.host import cores
from envkit.ground.progress import counted
from envkit.ground.sizes import shown_size
from envkit.ground.store import write_atomic
from envkit.image import spec
from envkit.image.blobs import tar_bytes
from envkit.image.layout import write_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.image.blobs import TarBytes

CHUNK = 1 << 20  # bytes of tar in one member
_LEVEL = 6  # zlib's own default
_GZIP_FORMAT = 31  # zlib's window bits for a gzip header without name and time
_NOTED = re.compile(r"sha256:[0-9a-f]{64}")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # RFC 1952, RFC 8878


class Packer:
    """Compresses the layers of one image.

    The digest of each compressed layer is noted, so that the next push can ask the registry for it before compressing.

    Args:
        source: an image whose layers are tars. Layers that are compressed already are copied.
        folder: where the blobs are written.
        notes: the folder of the notes; None: none are kept.
    """

    def __init__(self, source: spec.Image, folder: Path, notes: Path | None = None) -> None:
        self._source, self._folder, self._notes = source, folder, notes
        self._layers = {layer.diff_id: layer for layer in source.layers}
        self._made: dict[str, Path] = {}

    def image(self, reporter: Reporter, on_layer: Callable[[spec.Layer], None]) -> spec.Image:
        """Return the compressed image. A layer with a note has no blob yet; `blob` makes it.

        Args:
            reporter: receives the progress in bytes of the layers' tars.
            on_layer: called with each layer as soon as its digest is known; an exception ends the work.

        Raises:
            IntegrityError: a layer is not what the configuration says.
            EnvironmentProblem: the disk is full.
        """
        noted = {diff_id: self._noted(source) for diff_id, source in self._layers.items()}
        layers = {diff_id: layer for diff_id, layer in noted.items() if layer is not None}
        for layer in layers.values():
            on_layer(layer)
        new = [source for source in self._layers.values() if source.diff_id not in layers]
        total, done = sum(source.descriptor.size for source in new), 0
        if new:
            reporter.step(f"compress {counted(len(new), 'layer')} ({shown_size(total)})")
        for original in new:
            layers[original.diff_id] = self._make(original)
            self._note(original, layers[original.diff_id])
            done += original.descriptor.size
            reporter.advance(done, total)
            on_layer(layers[original.diff_id])
        return _image(self._source, tuple(layers[source.diff_id] for source in self._source.layers))

    def blob(self, layer: spec.Layer) -> Path:
        """Return the file of a layer that `image` returned without one.

        Raises:
            As `image`; also IntegrityError if the layer now compresses to other bytes than its note says.
        """
        original = self._layers[layer.diff_id]
        if original.diff_id not in self._made:
            made = self._make(original)
            if made.digest != layer.digest:
                self._forget(original)
                raise IntegrityError(
                    f"layer {original.diff_id} was compressed to {layer.digest} before and to {made.digest} now",
                    hint="run it again; the cached result was dropped",
                )
        return self._made[original.diff_id]

    def _make(self, original: spec.Layer) -> spec.Layer:
        path = self._folder / f"layer-{original.diff_id.removeprefix('sha256:')}"
        try:
            # Threads suffice: zlib releases the GIL while it compresses.
            with ThreadPoolExecutor(cores(), thread_name_prefix="envkit-pack") as pool:
                layer = _blob(original, path, pool)
        except OSError as error:
            raise write_error(error, path) from error
        self._made[original.diff_id] = path
        return layer

    def _noted(self, layer: spec.Layer) -> spec.Layer | None:
        try:
            digest, size = self._name(layer).read_text().split()
            # A layer that is compressed already is copied, so a note made from an equal tar has another digest.
            known = _NOTED.fullmatch(digest) is not None and size.isdigit() and _compression(layer) is None
        except (OSError, ValueError):
            return None
        if not known:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._name(layer))  # the cache is pruned least recently used first
        descriptor = spec.Descriptor(media_type=spec.LAYER_GZIP, digest=digest, size=int(size))
        return spec.Layer(descriptor=descriptor, diff_id=layer.diff_id, made_by="")

    def _note(self, original: spec.Layer, layer: spec.Layer) -> None:
        if self._notes is not None and _compression(original) is None:
            with contextlib.suppress(OSError):  # without the note, the next push compresses the layer again
                write_atomic(self._name(original), f"{layer.digest} {layer.descriptor.size}\n".encode())

    def _forget(self, layer: spec.Layer) -> None:
        with contextlib.suppress(OSError):
            self._name(layer).unlink()

    def _name(self, layer: spec.Layer) -> Path:
        """Return the path of a layer's note. The name depends on everything that determines the compressed bytes."""
        recipe = f"{layer.diff_id} {zlib.ZLIB_RUNTIME_VERSION} {_LEVEL} {CHUNK}"
        return (self._notes or self._folder) / hashlib.sha256(recipe.encode()).hexdigest()


def _image(image: spec.Image, layers: tuple[spec.Layer, ...]) -> spec.Image:
    config = spec.Descriptor(media_type=spec.CONFIG, digest=image.id, size=len(image.config))
    manifest = spec.canonical(
        {
            "schemaVersion": 2,
            "mediaType": spec.MANIFEST,
            "config": config.to_json(),
            "layers": [layer.descriptor.to_json() for layer in layers],
        }
    )
    return spec.Image(manifest=manifest, config=image.config, layers=layers)


def _blob(layer: spec.Layer, path: Path, pool: ThreadPoolExecutor) -> spec.Layer:
    compressed = _compression(layer)
    digest, size = hashlib.sha256(), 0
    # At its end `tar_bytes` checks the layer's digests, also if `_copied` reads the blob a second time.
    with path.open("xb") as file, tar_bytes(layer, threading.Event()) as stream:
        for piece in _copied(layer) if compressed else _members(stream, pool):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    descriptor = spec.Descriptor(
        media_type=compressed or spec.LAYER_GZIP, digest=f"sha256:{digest.hexdigest()}", size=size
    )
    return spec.Layer(descriptor=descriptor, diff_id=layer.diff_id, made_by="", blob=path)


def _compression(layer: spec.Layer) -> str | None:
    """Return the media type of a blob that is compressed already, None for a plain tar."""
    assert layer.blob is not None
    with layer.blob.open("rb") as file:
        file.seek(layer.offset)
        magic = file.read(min(len(_ZSTD), layer.descriptor.size))
    if magic.startswith(_GZIP):
        return spec.LAYER_GZIP
    return spec.LAYER_ZSTD if magic == _ZSTD else None


def _copied(layer: spec.Layer) -> Iterator[bytes]:
    assert layer.blob is not None
    left = layer.descriptor.size
    with layer.blob.open("rb") as file:
        file.seek(layer.offset)
        while left and (piece := file.read(min(CHUNK, left))):
            left -= len(piece)
            yield piece


def _members(stream: TarBytes, pool: ThreadPoolExecutor) -> Iterator[bytes]:
    """Yield the stream as gzip members in order, compressing several at once."""
    waiting: deque[Future[bytes]] = deque()
    limit = 2 * cores()  # bounds the memory
    for chunk in _chunks(stream):
        waiting.append(pool.submit(zlib.compress, chunk, _LEVEL, _GZIP_FORMAT))
        if len(waiting) > limit:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _chunks(stream: TarBytes) -> Iterator[bytes]:
    """Yield pieces of exactly CHUNK bytes, except the last, whatever the stream's reads return."""
    while piece := stream.read(CHUNK):
        chunk = bytearray(piece)
        while len(chunk) < CHUNK and (more := stream.read(CHUNK - len(chunk))):
            chunk += more
        yield bytes(chunk)
