"""Images in the archive that `docker save` writes: a tar of a manifest, configurations and layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.image import spec
from envkit.image.document import MOST_BYTES, damaged, history, parse_config, parse_json
from envkit.image.reference import FileReference
from envkit.image.tarstream import Entry, Kind, Source, entries

_MOST_LINKS = 2  # a link and the file that it leads to; a longer chain may be a loop


def read_archive(reference: FileReference) -> spec.Image:
    """The image of an archive that a reference means; layers are not read, only found.

    Raises:
        EngineError: the file does not exist, or has no image of that name.
        IntegrityError: it is not an archive of images, or the configuration does not match its digest.
        UsageError: it is compressed, or it holds several images and the reference names none.
    """
    path = reference.path
    if not path.is_file():
        raise EngineError(
            f"there is no image {str(reference)!r:.300}: {path} is not a file", hint=f"docker save -o {path} IMAGE"
        )
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise UsageError(f"{path} is compressed, and layers are read from where they lie", hint=f"gunzip {path}")
        file.seek(0)
        source = Source(file)
        try:
            by_name = {entry.name: entry for entry in entries(source, skip=lambda size: _skip(file, source, size))}
        except IntegrityError as error:
            raise damaged(f"{path}: {error.message}") from error

    def member(name: Any) -> Entry:
        # Old versions of the engine write a layer that two images share as a link to the other's.
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
                f"{path}: {entry.name} is larger than {MOST_BYTES} bytes, too large for a JSON document of an image"
            )
        with path.open("rb") as file:
            file.seek(entry.offset)
            return file.read(entry.size)

    if "manifest.json" not in by_name:
        raise EngineError(f"there is no image in {path}: it has no manifest.json", hint=f"docker save -o {path} IMAGE")
    chosen = _chosen(content("manifest.json"), reference)
    data = content(chosen.get("Config"))
    promised = str(chosen["Config"]).rpartition("/")[2].removesuffix(".json")
    # Engines name the file HEX.json or blobs/sha256/HEX. Other tools give it names that promise nothing.
    if len(promised) == 64 and spec.sha256(data) != f"sha256:{promised}":  # noqa: PLR2004 - a SHA-256 in hexadecimal
        raise damaged(f"{path}: the configuration {promised} has the digest {spec.sha256(data)}")
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
    origin = FileReference(kind=reference.kind, path=path.absolute(), tag=tags[0] if tags else None)
    return spec.Image(manifest=b"", config=data, layers=layers, tags=tags, origin=str(origin))


def _chosen(manifest: bytes, reference: FileReference) -> dict[str, Any]:
    # The file is a list, and `parse_json` takes objects alone.
    wrapped = parse_json(b'{"images":' + manifest + b"}", f"{reference.path}: manifest.json")["images"]
    if not isinstance(wrapped, list) or not all(isinstance(row, dict) for row in wrapped):
        raise damaged(f"{reference.path}: manifest.json is not a list of images")
    tags = [str(tag) for row in wrapped for tag in row.get("RepoTags") or ()]
    fitting = [row for row in wrapped if reference.tag is None or _named(row.get("RepoTags") or (), reference.tag)]
    if not fitting or reference.digest is not None:
        have = f"it has {', '.join(tags)}" if tags else "it names none"
        raise EngineError(f"there is no image {str(reference)!r:.300} ({have})", hint=f"tar tf {reference.path}")
    if len(fitting) > 1:
        hint = f"name one: docker-archive:{reference.path}:{tags[0]}" if tags else "save one image to one file"
        raise UsageError(f"{reference.path} holds {len(fitting)} images", hint=hint, details=tuple(tags))
    chosen: dict[str, Any] = fitting[0]
    return chosen


def _named(tags: Any, wanted: str) -> bool:
    return any(wanted in (tag, str(tag).rpartition("/")[2], str(tag).rpartition(":")[2]) for tag in tags)


def _skip(file: Any, source: Source, size: int) -> None:
    """Pass over a member's content without reading it."""
    file.seek(size, os.SEEK_CUR)
    source.position += size


def holds(path: Path, digest: str) -> bool:
    """Whether an archive has a manifest or index of this digest, as those of containerd's storage do."""
    name = f"blobs/sha256/{digest.removeprefix('sha256:')}"
    with path.open("rb") as file:
        source = Source(file)
        for entry in entries(source, skip=lambda size: _skip(file, source, size)):
            if entry.name == name and entry.kind is Kind.FILE and entry.size <= MOST_BYTES:
                with path.open("rb") as again:
                    again.seek(entry.offset)
                    return spec.sha256(again.read(entry.size)) == digest
    return False
