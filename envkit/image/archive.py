"""Read and write archives of `docker save`: a tar with a manifest, configurations and layers.

`docker load`, `podman load` and skopeo read them, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.store import replacing
from envkit.image import spec, tar
from envkit.image.document import MOST_BYTES, damaged, history, parse_config, parse_json
from envkit.image.layout import blob_of, write_error
from envkit.image.name import InArchive
from envkit.image.spec import MTIME
from envkit.image.tarstream import Entry, Kind, Source, entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PIECE = 1 << 20
_MOST_LINKS = 2  # a link and its target; longer chains could be loops


def read_archive(reference: InArchive) -> spec.Image:
    """Return an image of an archive; layers are located, not read.

    Raises:
        EngineError: the file does not exist, or has no such image.
        IntegrityError: it is not an archive of images, or the configuration does not match its digest.
        UsageError: it is compressed, or it has several images and the reference selects none.
    """
    path = reference.path
    if not path.is_file():
        raise EngineError(
            f"there is no image {str(reference)!r:.300}: {path} is not a file", hint=f"docker save -o {path} IMAGE"
        )
    with path.open("rb") as file:
        # Layers are read at their offsets in the file, which a compressed archive does not have.
        if file.read(2) == b"\x1f\x8b":
            raise UsageError(f"{path} is compressed; envkit needs an uncompressed archive", hint=f"gunzip {path}")
        file.seek(0)
        source = Source(file)
        try:
            by_name = {entry.name: entry for entry in entries(source, skip=lambda size: _skip(file, source, size))}
        except IntegrityError as error:
            raise damaged(f"{path}: {error.message}") from error

    def member(name: Any) -> Entry:
        # Old versions of Docker write a layer that two images share as a link.
        for _ in range(_MOST_LINKS):
            entry = by_name.get(str(name))
            if entry is None:
                break
            if entry.kind is Kind.FILE:
                return entry
            name = os.path.normpath(os.path.join(os.path.dirname(entry.name), entry.target))  # noqa: PTH118, PTH120
        raise damaged(f"{path}: {str(name)[:200]!r} is not in the archive")

    def content(name: Any) -> bytes:
        entry = member(name)
        if entry.size > MOST_BYTES:
            raise damaged(
                f"{path}: {entry.name} is too large for a JSON document of an image: more than {MOST_BYTES} bytes"
            )
        with path.open("rb") as file:
            file.seek(entry.offset)
            return file.read(entry.size)

    if "manifest.json" not in by_name:
        raise EngineError(f"there is no image in {path}: it has no manifest.json", hint=f"docker save -o {path} IMAGE")
    chosen = _chosen(content("manifest.json"), reference)
    data = content(chosen.get("Config"))
    expected = str(chosen["Config"]).rpartition("/")[2].removesuffix(".json")
    # Engines name the file HEX.json or blobs/sha256/HEX. The names of other tools have no digest.
    if len(expected) == 64 and spec.sha256(data) != f"sha256:{expected}":  # noqa: PLR2004 - a SHA-256 in hexadecimal
        raise damaged(f"{path}: the configuration {expected} has the digest {spec.sha256(data)}")
    tree, diff_ids = parse_config(data, f"{path}: {chosen['Config']}")
    names = chosen.get("Layers")
    if not isinstance(names, list) or len(names) != len(diff_ids):
        raise damaged(f"{path}: the manifest's layers are not those of its configuration ({len(diff_ids)})")
    members = [member(name) for name in names]
    layers = tuple(
        spec.Layer(
            descriptor=spec.Descriptor(media_type=spec.LAYER_TAR, digest="", size=entry.size),
            diff_id=diff_id,
            made_by=made_by,
            blob=path.absolute(),
            offset=entry.offset,
        )
        for diff_id, entry, made_by in zip(diff_ids, members, history(tree, len(diff_ids)), strict=True)
    )
    tags = tuple(str(tag) for tag in chosen.get("RepoTags") or ())
    origin = InArchive(path=path.absolute(), tag=tags[0] if tags else None)
    return spec.Image(manifest=b"", config=data, layers=layers, tags=tags, origin=origin)


def _chosen(manifest: bytes, reference: InArchive) -> dict[str, Any]:
    # The file is a list, and `parse_json` accepts only objects.
    wrapped = parse_json(b'{"images":' + manifest + b"}", f"{reference.path}: manifest.json")["images"]
    if not isinstance(wrapped, list) or not all(isinstance(row, dict) for row in wrapped):
        raise damaged(f"{reference.path}: manifest.json is not a list of images")
    tags = [str(tag) for row in wrapped for tag in row.get("RepoTags") or ()]
    matches = [row for row in wrapped if reference.tag is None or _named(row.get("RepoTags") or (), reference.tag)]
    # Archives list images by name; the digest of a manifest selects none.
    if not matches or reference.digest is not None:
        have = f"it has {', '.join(tags)}" if tags else "its images have no names"
        raise EngineError(f"there is no image {str(reference)!r:.300} ({have})", hint=f"tar tf {reference.path}")
    if len(matches) > 1:
        hint = f"choose one: docker-archive:{reference.path}:{tags[0]}" if tags else "save a single image to the file"
        raise UsageError(f"{reference.path} has {len(matches)} images", hint=hint, details=tuple(tags))
    chosen: dict[str, Any] = matches[0]
    return chosen


def _named(tags: Any, wanted: str) -> bool:
    """Return whether one of the names is `wanted`: with its registry and path, without them, or only the tag."""
    return any(wanted in (tag, str(tag).rpartition("/")[2], str(tag).rpartition(":")[2]) for tag in tags)


def _skip(file: Any, source: Source, size: int) -> None:
    """Skip a member's contents without reading them."""
    file.seek(size, os.SEEK_CUR)
    source.position += size


def holds(path: Path, digest: str) -> bool:
    """Return whether an archive has a manifest or index of this digest; only containerd's image store saves them."""
    name = f"blobs/sha256/{digest.removeprefix('sha256:')}"
    with path.open("rb") as file:
        source = Source(file)
        for entry in entries(source, skip=lambda size: _skip(file, source, size)):
            if entry.name == name and entry.kind is Kind.FILE and entry.size <= MOST_BYTES:
                with path.open("rb") as again:
                    again.seek(entry.offset)
                    return spec.sha256(again.read(entry.size)) == digest
    return False


def stream(image: spec.Image, names: Sequence[str]) -> Iterator[bytes]:
    """Yield an archive in pieces of at most 1 MiB. Equal images and names give equal bytes.

    Args:
        image: every layer has its blob.
        names: the names of the image, 'name:tag' each; may be empty.

    Raises:
        IntegrityError: a layer's file is missing, or its size is not that of its descriptor.
    """
    documents = _documents(image, names)
    blobs = {_blob_path(layer.digest): blob_of(layer) for layer in image.layers}
    written = 0
    for folder in ("blobs", "blobs/sha256"):
        yield (head := tar.header(folder, kind=tar.FOLDER, mode=0o755, mtime=MTIME))
        written += len(head)
    # Layers with equal bytes have the same path, which is written once.
    for path in sorted(blobs.keys() | documents.keys()):
        size = len(documents[path]) if path in documents else blobs[path].stat().st_size
        yield (head := tar.header(path, kind=tar.FILE, mode=0o644, mtime=MTIME, size=size))
        yield from [documents[path]] if path in documents else _read_blob(blobs[path], size)
        yield tar.padding(size)
        written += len(head) + size + len(tar.padding(size))
    yield tar.end(written)


def write_archive(image: spec.Image, path: Path, names: Sequence[str]) -> None:
    """Write an archive. A run that is killed leaves the old file or the new one.

    Raises:
        IntegrityError: as `stream`.
        EnvironmentProblem: the disk is full or the folder cannot be written.
    """
    try:
        with replacing(path) as file:
            for piece in stream(image, names):
                file.write(piece)
    except OSError as error:
        raise write_error(error, path.absolute()) from error


def _documents(image: spec.Image, names: Sequence[str]) -> dict[str, bytes]:
    docker = [
        {
            "Config": _blob_path(image.id),
            "Layers": [_blob_path(layer.digest) for layer in image.layers],
            "RepoTags": sorted(names) or None,  # `docker save` writes null for an image without a name
        }
    ]
    return {
        _blob_path(image.id): image.config,
        "manifest.json": json.dumps(docker, sort_keys=True, separators=(",", ":")).encode(),
    }


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _read_blob(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield piece
    if left:
        raise IntegrityError(f"{path} was truncated while it was read", hint="envkit build again")
