"""Images in an OCI image layout: index, manifest and configuration, each checked against its digest and size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envkit.ground import platforms
from envkit.ground.errors import EngineError, UsageError
from envkit.run.rootless.image import Blob, FileImage, Layer, damaged, digest_of, parse_config, parse_json
from envkit.run.rootless.reference import FileReference, is_digest

_NAME = "org.opencontainers.image.ref.name"
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MOST_JSON = 8 << 20
_MOST_DEPTH = 4


def read_layout(reference: FileReference) -> FileImage:
    """The image of a layout that a reference means; nothing but JSON is read.

    Raises:
        EngineError: there is no layout, or no image of that name in it.
        IntegrityError: a file of it does not match its digest or size, or is missing.
        UsageError: it holds several images and the reference names none.
    """
    folder = reference.path
    if not (folder / "index.json").is_file():
        raise EngineError(
            f"there is no image {str(reference)!r:.300}: {folder} holds no index.json",
            hint="envkit build --engine embedded --output oci:DIR",
        )
    index = parse_json(_small(folder / "index.json"), f"{folder}/index.json")
    chosen = _chosen(_manifests(index, f"{folder}/index.json"), reference)
    tag = (chosen.get("annotations") or {}).get(_NAME)
    manifest = _manifest(folder, chosen)
    config = descriptor(manifest.get("config"), "config")
    data = _blob_bytes(folder, config)
    tree, diff_ids = parse_config(data, f"configuration {config['digest']}")
    listed = manifest.get("layers")
    if not isinstance(listed, list) or len(listed) != len(diff_ids):
        raise damaged(f"{folder}: the manifest's layers are not those of its configuration ({len(diff_ids)})")
    layers = [
        Layer(diff_id=diff_id, blob=_blob(folder, descriptor(entry, "layer")))
        for diff_id, entry in zip(diff_ids, listed, strict=True)
    ]
    return FileImage(
        id=digest_of(data),
        config=tree,
        config_bytes=data,
        tags=(str(tag),) if tag else (),
        layers=tuple(layers),
        origin=str(FileReference(kind=reference.kind, path=folder.absolute(), digest=chosen["digest"])),
    )


def _chosen(found: list[dict[str, Any]], reference: FileReference) -> dict[str, Any]:
    """The descriptor that a reference means."""
    names = sorted({str(name) for one in found if (name := (one.get("annotations") or {}).get(_NAME))})
    if reference.digest is not None:
        fitting = [one for one in found if one["digest"] == reference.digest]
    elif reference.tag is not None:
        fitting = [one for one in found if (one.get("annotations") or {}).get(_NAME) == reference.tag]
    else:
        fitting = found
    if not fitting:
        have = f"it has {', '.join(names)}" if names else "it names none"
        raise EngineError(
            f"there is no image {str(reference)!r:.300} ({have})", hint=f"envkit verify oci:{reference.path}"
        )
    if len({one["digest"] for one in fitting}) == 1:
        return fitting[0]
    here = of_this_machine(fitting)
    if here is not None:
        return here
    shown = names or [one["digest"] for one in fitting]
    raise UsageError(
        f"{reference.path} holds {len(fitting)} images",
        hint=f"name one: oci:{reference.path}:{shown[0]}" if names else f"name one: oci:{reference.path}@{shown[0]}",
        details=tuple(shown),
    )


def _manifest(folder: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    """The manifest below a descriptor, through indexes of platforms."""
    for _ in range(_MOST_DEPTH):
        where = f"manifest {descriptor['digest']}"
        tree = parse_json(_blob_bytes(folder, descriptor), where)
        if "manifests" not in tree and tree.get("mediaType") not in _INDEXES:
            return tree
        found = _manifests(tree, where)
        one = found[0] if len(found) == 1 else of_this_machine(found)
        if one is None:
            raise EngineError(f"{where} has no image for {platform_here()}", hint="build it for this platform")
        descriptor = one
    raise damaged(f"{folder}: indexes within indexes, more than {_MOST_DEPTH} deep")


def of_this_machine(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The one descriptor that is for this machine, None where there is none or are several."""
    fitting = [
        one
        for one in found
        if isinstance(one.get("platform"), dict)
        and f"{one['platform'].get('os')}/{one['platform'].get('architecture')}" == platform_here()
    ]
    return fitting[0] if len(fitting) == 1 else None


def platform_here() -> str:
    """This machine's platform as images name it: `linux/amd64`."""
    return platforms.here()


def _manifests(tree: dict[str, Any], where: str) -> list[dict[str, Any]]:
    listed = tree.get("manifests")
    if not isinstance(listed, list) or not listed:
        raise EngineError(f"there is no image in {where}", hint="envkit build --engine embedded --output oci:DIR")
    return [descriptor(one, where) for one in listed]


def descriptor(tree: Any, what: str) -> dict[str, Any]:
    """A descriptor whose digest and size can be trusted to be a digest and a size."""
    if not isinstance(tree, dict) or not is_digest(tree.get("digest")):
        raise damaged(f"{what}: a descriptor without a SHA-256 digest")
    if type(tree.get("size")) is not int or tree["size"] < 0:
        raise damaged(f"{what}: {tree['digest']} has no size")
    if not isinstance(tree.get("annotations") or {}, dict):
        raise damaged(f"{what}: {tree['digest']} has annotations that are no mapping")
    return tree


def _blob(folder: Path, descriptor: dict[str, Any]) -> Blob:
    """A blob whose file is there with the right size; its digest is checked when it is read."""
    digest = str(descriptor["digest"])
    path = folder.absolute() / "blobs" / "sha256" / digest.removeprefix("sha256:")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise damaged(f"{folder}: blob {digest} cannot be read: {error.strerror}") from error
    if size != descriptor["size"]:
        raise damaged(f"{folder}: blob {digest} has {size} bytes, not {descriptor['size']}")
    return Blob(path=path, offset=0, size=size, digest=digest)


def _blob_bytes(folder: Path, descriptor: dict[str, Any]) -> bytes:
    blob = _blob(folder, descriptor)
    data = _small(blob.path)
    if digest_of(data) != blob.digest:
        raise damaged(f"{folder}: blob {blob.digest} has the digest {digest_of(data)}")
    return data


def _small(path: Path) -> bytes:
    """A JSON file, refused where it is larger than any of its kind."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_JSON + 1)
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    if len(data) > _MOST_JSON:
        raise damaged(f"{path} is larger than {_MOST_JSON} bytes, so it is no image's JSON")
    return data
