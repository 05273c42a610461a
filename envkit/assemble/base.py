"""The base of an assembled image: an image of a registry by digest, a root of Debian packages, or nothing.

Layers of a registry's image are used byte for byte; only its manifest and configuration are read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.assemble import base_files
from envkit.engines.base import mirrored
from envkit.ground import platforms
from envkit.ground.errors import EngineError, UsageError
from envkit.image import spec
from envkit.image.name import Reference, parse_reference
from envkit.lock.base import NONE, PREFIX, SUITES
from envkit.plan.definition import kind_of
from envkit.registry.documents import Documents
from envkit.registry.download import fetch, from_registry
from envkit.registry.registry import Registry
from envkit.registry.remote import image_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envkit.assemble.base_files import BaseFiles
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock, LockedBase
    from envkit.plan.model import BuildPlan
    from envkit.registry.transport import Transport

# Docker has its own media types for the same bytes.
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
    """Return a base image of a registry, its layers not fetched yet, and the registry.

    Args:
        name: the plan's reference, with the registry; the mirror of Docker Hub is used if one is set.
        digest: the digest of the manifest or index in the lock; None looks up the tag.
        platform: 'linux-64' or 'linux-aarch64'.
        mirrors: the user's mirrors.
        transport: the connections.
        folder: where manifests and configurations are cached by digest; None caches nothing.
        offline: use only the cache.

    Raises:
        UsageError: the name has a digest other than `digest`.
        EngineError: the registry has no such image, or none for the platform, or refuses.
        IntegrityError: the bytes do not match the digest.
        EnvironmentProblem: the registry cannot be reached, or something is missing while offline.
    """
    reference = parse_reference(mirrored(name, mirrors))
    if digest is not None:
        if reference.digest not in (None, digest):
            raise UsageError(f"{name} has a different digest than the lock ({digest})", hint="envkit lock")
        reference = reference.at(digest)
    registry = Registry.of(reference, transport)
    documents = Documents(registry, folder, offline=offline)
    outer = documents.manifest(reference)
    if outer is None:
        raise EngineError(f"there is no image {reference}", hint="check the image's name and tag, or --base IMAGE")
    wanted = platforms.platform(platform).oci
    image = image_at(outer, reference, documents, platform=wanted)
    # The platform of an image without an index is stated only in its configuration.
    image_platform = f"{image.tree.get('os')}/{image.tree.get('architecture')}"
    if image_platform != wanted:
        raise EngineError(
            f"{reference} is for {image_platform}, not for {platform}", hint="use --base with another image"
        )
    return spec.Base(
        name=name,
        digest=outer.digest,
        layers=tuple(_base_layer(layer, reference) for layer in image.layers),
        config=image.settings,
        history=tuple(image.tree.get("history") or ()),
    ), registry


def with_blobs(
    base: spec.Base,
    registry: Registry,
    folder: Path,
    on_bytes: Callable[[int, int], None],
    *,
    offline: bool = False,
) -> spec.Base:
    """Fetch all layers of a base into the folder, verify them, and return the base with their paths.

    Raises:
        As `envkit.registry.download.fetch`.
    """
    items = []
    for layer in base.layers:
        repository = (layer.origin or "").removeprefix(f"{registry.name}/")
        items.append(from_registry(registry, repository, digest=layer.digest, size=layer.descriptor.size))
    blobs = fetch(items, folder, registry.transport.policy, on_bytes, offline=offline)
    layers = [replace(layer, blob=blobs[layer.digest.removeprefix("sha256:")]) for layer in base.layers]
    return replace(base, layers=tuple(layers))


def _base_layer(layer: spec.Layer, reference: Reference) -> spec.Layer:
    """Return a layer of the base with the OCI media type."""
    kind = _LAYER_TYPES.get(layer.descriptor.media_type)
    if kind is None:
        raise EngineError(
            f"{reference} has a layer of an unsupported media type: {layer.descriptor.media_type}",
            hint="use --base with another image",
        )
    return replace(layer, descriptor=replace(layer.descriptor, media_type=kind), made_by=f"base {reference}")


def fetch_base(
    base: LockedBase,
    platform: str,
    *,
    mirrors: Mirrors,
    transport: Transport,
    folder: Path,
    reporter: Reporter,
    offline: bool = False,
) -> spec.Base:
    """Return the base image that a lock names, its layers fetched.

    Raises:
        As `from_reference` and `with_blobs`.
    """
    reporter.step(f"fetch the base {base.reference}")
    remote_base, registry = from_reference(
        base.reference, base.digest, platform, mirrors, transport, folder=folder, offline=offline
    )
    return with_blobs(remote_base, registry, folder, reporter.advance, offline=offline)


def files_of(base: spec.Base, lock: Lock, plan: BuildPlan) -> BaseFiles:
    """Return the files of the base after checking that it has what the plan needs.

    Raises:
        UsageError: it lacks system packages or programs that the plan needs.
        EngineError, IntegrityError: its layers cannot be read.
    """
    files = base_files.read(base.layers)
    if lock.base.kind == NONE or base == NO_BASE:
        return files
    lacking = _lacking(files, lock, plan)
    if lacking:
        suite = SUITES.get(plan.resolution.os)
        options = [f"--base {PREFIX}debian/{suite}"] if suite and lock.base.kind != "bootstrap" else []
        raise UsageError(
            f"the base {lock.base.reference} lacks {', '.join(lacking)}; the embedded engine cannot "
            "install system packages",
            hint=" or ".join([*options, "--base IMAGE with a base that has them", "--engine docker"]),
        )
    return files


def _lacking(files: BaseFiles, lock: Lock, plan: BuildPlan) -> tuple[str, ...]:
    installed = files.packages()
    if installed is not None and plan.os_family == "deb":
        missing = [name for name in plan.system if name.partition("=")[0] not in installed]  # NAME or NAME=VERSION
        if missing:
            return tuple(missing)
    # entry.sh and the user's login shell are bash.
    programs = [path for path in plan.entrypoint[:1] if path.startswith("/")] + ["/bin/bash"]
    if kind_of(plan.template) == "wheels":
        programs.append(f"/usr/bin/python{lock.python}")
    # Programs of the environment are in the layers above, such as conda's tini.
    own = f"{plan.prefix}/"
    return tuple(path for path in programs if not path.startswith(own) and files.find(path) is None)
