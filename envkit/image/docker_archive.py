"""An image as one tar that `docker load`, `podman load` and skopeo read: the format of `docker save`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from envkit.ground.errors import IntegrityError
from envkit.ground.store import replacing
from envkit.image import spec, tar
from envkit.image.layout import blob_of, out_of_order
from envkit.image.spec import MTIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_PIECE = 1 << 20


def stream(image: spec.Image, names: Sequence[str]) -> Iterator[bytes]:
    """The archive in pieces of at most 1 MiB, the same for equal images and names.

    Args:
        image: every layer has its blob.
        names: what the image is called, 'name:tag' each; may be empty.

    Raises:
        IntegrityError: a layer's file is missing or has another size than its descriptor.
    """
    documents = _documents(image, names)
    blobs = {_path(layer.digest): blob_of(layer) for layer in image.layers}
    written = 0
    for folder in ("blobs", "blobs/sha256"):
        yield (head := tar.header(folder, kind=tar.FOLDER, mode=0o755, mtime=MTIME))
        written += len(head)
    for path in sorted(blobs.keys() | documents.keys()):
        size = len(documents[path]) if path in documents else blobs[path].stat().st_size
        yield (head := tar.header(path, kind=tar.FILE, mode=0o644, mtime=MTIME, size=size))
        yield from [documents[path]] if path in documents else _read(blobs[path], size)
        yield tar.padding(size)
        written += len(head) + size + len(tar.padding(size))
    yield tar.end(written)


def write_docker_archive(image: spec.Image, path: Path, names: Sequence[str]) -> None:
    """Write the archive; a run killed at any moment leaves the old file or the new one.

    Raises:
        IntegrityError: as `stream`.
        EnvironmentProblem: the disk is full or the folder cannot be written.
    """
    try:
        with replacing(path) as file:
            for piece in stream(image, names):
                file.write(piece)
    except OSError as error:
        raise out_of_order(error, path.absolute()) from error


def _documents(image: spec.Image, names: Sequence[str]) -> dict[str, bytes]:
    docker = [
        {
            "Config": _path(image.id),
            "Layers": [_path(layer.digest) for layer in image.layers],
            "RepoTags": sorted(names) or None,  # as `docker save` writes it for an image without a name
        }
    ]
    return {
        _path(image.id): image.config,
        "manifest.json": json.dumps(docker, sort_keys=True, separators=(",", ":")).encode(),
    }


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _read(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield piece
    if left:
        raise IntegrityError(f"{path} became shorter while it was read", hint="envkit build again")
