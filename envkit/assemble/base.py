"""What an embedded image stands on: a registry's image by digest, a bootstrapped root file system, or nothing.

A registry's layers are taken as they are, byte for byte; only manifest and configuration are read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envkit.build.base import mirrored
from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.image import spec
from envkit.image.reference import Reference, parse_reference
from envkit.registry.documents import Documents
from envkit.registry.download import fetch, from_registry
from envkit.registry.registry import DOCKER_INDEX, DOCKER_MANIFEST, Manifest, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envkit.ground.settings import Mirrors
    from envkit.registry.transport import Transport

_ARCHITECTURES = {"linux-64": "amd64", "linux-aarch64": "arm64"}
# Docker's names for the same bytes.
_LAYER_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": spec.LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": spec.LAYER_TAR,
    spec.LAYER_GZIP: spec.LAYER_GZIP,
    spec.LAYER_TAR: spec.LAYER_TAR,
    spec.LAYER_ZSTD: spec.LAYER_ZSTD,
}
NO_BASE = spec.Base(name="")


def from_reference(
    name: str,
    digest: str | None,
    platform: str,
    mirrors: Mirrors,
    transport: Transport,
    *,
    folder: Path | None = None,
    offline: bool = False,
) -> tuple[spec.Base, Registry]:
    """The base that a registry holds, its layers not fetched yet, and that registry.

    Args:
        name: the plan's reference, registry written out; a mirror of Docker Hub is used where one is set.
        digest: manifest or index digest that the lock names; None asks for what the tag is now.
        platform: 'linux-64' or 'linux-aarch64'.
        mirrors: as set by the user.
        transport: connections.
        folder: where manifests and configurations are kept by digest; None keeps none.
        offline: ask the registry for nothing.

    Raises:
        EngineError: the registry has no such image, none for the platform, or refuses.
        IntegrityError: its bytes contradict the digest.
        EnvironmentProblem: it cannot be reached, or `offline` and something is not in the folder.
    """
    reference = parse_reference(mirrored(name, mirrors))
    if digest is not None:
        if reference.digest not in (None, digest):
            raise UsageError(f"{name} has another digest than the lock's {digest}", hint="envkit lock")
        reference = reference.at(digest)
    registry = Registry.of(reference, transport)
    documents = Documents(registry, folder, offline=offline)
    outer = documents.manifest(reference)
    if outer is None:
        raise EngineError(f"there is no image {reference}", hint="check the image's name and tag, or --base IMAGE")
    own = _for_platform(outer, reference, documents, platform)
    tree = _table(own.data, f"the manifest of {reference}")
    config = _config(tree, reference, documents, platform)
    return spec.Base(
        name=name,
        digest=outer.digest,
        layers=_layers(tree, config, reference),
        config=_mapping(config.get("config")),
        history=tuple(config.get("history") or ()),
    ), registry


def with_blobs(
    base: spec.Base,
    registry: Registry,
    folder: Path,
    on_bytes: Callable[[int, int], None],
    *,
    offline: bool = False,
) -> spec.Base:
    """The same base with every layer in the folder, verified.

    Raises:
        As `envkit.registry.download.fetch`.
    """
    items = []
    for layer in base.layers:
        repository = (layer.origin or "").removeprefix(f"{registry.name}/")
        items.append(from_registry(registry, repository, digest=layer.digest, size=layer.descriptor.size))
    found = fetch(items, folder, registry.transport.policy, on_bytes, offline=offline)
    layers = [replace(layer, blob=found[layer.digest.removeprefix("sha256:")]) for layer in base.layers]
    return replace(base, layers=tuple(layers))


def _for_platform(outer: Manifest, reference: Reference, documents: Documents, platform: str) -> Manifest:
    """The image manifest for a platform: what an index names, or the manifest itself."""
    kind = outer.media_type
    if kind in (spec.MANIFEST, DOCKER_MANIFEST):
        return outer
    if kind not in (spec.INDEX, DOCKER_INDEX):
        raise EngineError(f"{reference} is {kind or 'nothing'}, not an image", hint="check the image's name and tag")
    rows = [
        row
        for row in _table(outer.data, f"the index of {reference}").get("manifests") or ()
        if isinstance(row, dict) and row.get("mediaType") in (spec.MANIFEST, DOCKER_MANIFEST)
    ]
    wanted = ("linux", _ARCHITECTURES[platform])
    for row in rows:
        told = _mapping(row.get("platform"))
        if (told.get("os"), told.get("architecture")) == wanted and told.get("variant") in (None, "", "v8"):
            found = documents.manifest(reference.at(str(row.get("digest"))))
            if found is None:
                raise EngineError(
                    f"{reference} names {row.get('digest')}, which its registry lacks", hint="--base IMAGE"
                )
            return found
    have = sorted({_platform(row) for row in rows})
    raise EngineError(
        f"{reference} has no image for {'/'.join(wanted)}", hint=f"it has: {', '.join(have)[:200] or 'none'}"
    )


def _config(tree: Mapping[str, Any], reference: Reference, documents: Documents, platform: str) -> dict[str, Any]:
    data = documents.config(reference, str(_mapping(tree.get("config")).get("digest")))
    config = _table(data, f"the configuration of {reference}")
    fault = spec.config_fault(config)
    if fault is not None:
        raise IntegrityError(f"the configuration of {reference}: {fault}", hint="--base IMAGE")
    found = (config.get("os"), config.get("architecture"))
    if found != ("linux", _ARCHITECTURES[platform]):
        raise EngineError(f"{reference} is for {found[0]}/{found[1]}, not for {platform}", hint="--base IMAGE")
    return config


def _layers(tree: Mapping[str, Any], config: Mapping[str, Any], reference: Reference) -> tuple[spec.Layer, ...]:
    rows, diff_ids = tree.get("layers") or [], _mapping(config.get("rootfs")).get("diff_ids") or []
    if len(rows) != len(diff_ids):
        raise IntegrityError(f"{reference}: {len(rows)} layers and {len(diff_ids)} diff ids", hint="--base IMAGE")
    found = []
    for row, diff_id in zip(rows, diff_ids, strict=True):
        kind = _LAYER_TYPES.get(str(row.get("mediaType")))
        if kind is None:
            raise EngineError(f"{reference} has a layer of the kind {row.get('mediaType')}", hint="--base IMAGE")
        descriptor = spec.Descriptor(media_type=kind, digest=str(row["digest"]), size=int(row["size"]))
        found.append(
            spec.Layer(descriptor=descriptor, diff_id=str(diff_id), made_by=f"base {reference}", origin=reference.place)
        )
    return tuple(found)


def _table(data: bytes, what: str) -> dict[str, Any]:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{what} is not JSON", hint="check the image's name, or the proxy in between") from error
    if not isinstance(tree, dict):
        raise EngineError(f"{what} is not a table", hint="check the image's name, or the proxy in between")
    return tree


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _platform(row: Mapping[str, Any]) -> str:
    told = _mapping(row.get("platform"))
    return "/".join(str(told[key]) for key in ("os", "architecture", "variant") if told.get(key))
