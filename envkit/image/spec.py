"""OCI images as values, and their configuration, manifest and index as bytes. Equal inputs give equal bytes.

Source: OCI image specification 1.0 (config.md, manifest.md, image-index.md). Docker 20.10 and later engines read its
media types.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envkit.ground import platforms
from envkit.ground.errors import EngineError
from envkit.ground.naming import LABEL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envkit.image.name import ImageName
    from envkit.plan.model import BuildPlan

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
MAX_LAYERS = 127  # Docker cannot mount more with overlayfs
# 1980-01-01, the earliest time in zip files, so that tools in the image can zip its files.
MTIME = 315532800
CREATED = "1980-01-01T00:00:00Z"  # MTIME; used unless SOURCE_DATE_EPOCH is set
_OCI_LABEL = "org.opencontainers.image."


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A reference to a blob: its media type, `sha256:` digest and size in bytes."""

    media_type: str
    digest: str  # empty for layers in archives of `docker save`, which have only a diff_id
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor for manifests and indexes."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDigest:
    """The digests and sizes of a layer; digests are hexadecimal without `sha256:`."""

    digest: str  # of the compressed blob, for the manifest
    diff_id: str  # of the tar, for the configuration
    size: int  # bytes of the blob
    tar_size: int  # bytes of the tar


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of an image."""

    descriptor: Descriptor
    diff_id: str  # 'sha256:...' of the tar
    made_by: str = ""  # the history entry: 'envkit: torch 2.7.1'; empty: unknown
    blob: Path | None = None  # the file of the blob, perhaps not fetched yet; None: there is no file
    offset: int = 0  # where the blob starts in that file, in bytes
    origin: str | None = None  # 'host/repository' with the blob, from which its registry can mount it

    @property
    def digest(self) -> str:
        """The blob's digest."""
        return self.descriptor.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base of an image: its layers and configuration."""

    name: str  # 'docker.io/library/debian:bookworm-slim'; empty for no base
    digest: str | None = None  # of the manifest or index; None for a bootstrapped base or none
    layers: tuple[Layer, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)  # the `config` member: Env, Labels, ...
    history: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The settings of containers of an image."""

    env: tuple[tuple[str, str], ...]
    user: str  # 'uid:gid'
    workdir: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    stop_signal: str = "SIGTERM"
    ports: tuple[str, ...] = ()  # '8888/tcp'
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image. `digest` identifies it in registries, `id` in the storage of an engine."""

    manifest: bytes  # empty in archives of `docker save`, which have none
    config: bytes
    layers: tuple[Layer, ...]  # lowest first
    tags: tuple[str, ...] = ()  # its tags where it was read
    origin: ImageName | None = None  # where it was read, with its digest; None: a new image

    @property
    def tree(self) -> Mapping[str, Any]:
        """The configuration."""
        tree = json.loads(self.config)
        assert isinstance(tree, dict)
        return tree

    @property
    def settings(self) -> Mapping[str, Any]:
        """The `config` member of the configuration: user, environment, entry point and others."""
        config = self.tree.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return sha256(self.manifest)

    @property
    def id(self) -> str:
        """The configuration's digest."""
        return sha256(self.config)

    @property
    def media_type(self) -> str:
        """The manifest's media type; OCI's if it states none, which the specification allows."""
        try:
            stated_type = json.loads(self.manifest).get("mediaType")
        except (ValueError, AttributeError, RecursionError):
            stated_type = None
        return stated_type if isinstance(stated_type, str) and stated_type else MANIFEST

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of the manifest."""
        return Descriptor(media_type=self.media_type, digest=self.digest, size=len(self.manifest))

    @property
    def size(self) -> int:
        """The size of all blobs in bytes, equal blobs counted once."""
        blobs = {layer.digest: layer.descriptor.size for layer in self.layers}
        return sum(blobs.values()) + len(self.manifest) + len(self.config)


def layer(made: LayerDigest, blob: Path, made_by: str, compression: str = "gzip") -> Layer:
    """Return a layer that was just assembled; `compression` is gzip or zstd."""
    descriptor = Descriptor(media_type=f"{LAYER_TAR}+{compression}", digest=f"sha256:{made.digest}", size=made.size)
    return Layer(descriptor=descriptor, diff_id=f"sha256:{made.diff_id}", made_by=made_by, blob=blob)


def runtime_of(plan: BuildPlan) -> Runtime:
    """Return the container settings of a plan."""
    return Runtime(
        env=plan.env,
        user=plan.user,
        workdir=plan.workdir,
        entrypoint=plan.entrypoint,
        cmd=plan.cmd,
        ports=plan.ports,
        volumes=plan.volumes,
    )


def image(base: Base, layers: Sequence[Layer], runtime: Runtime, labels: Mapping[str, str], platform: str) -> Image:
    """Return the image of `layers` on a base.

    The creation time is the label `org.opencontainers.image.created`, which SOURCE_DATE_EPOCH sets, else a constant.
    Labels below `org.opencontainers.image.` and the digest of the plan become annotations of the manifest, too.

    Args:
        base: the base.
        layers: the layers above the base, lowest first.
        runtime: the settings of containers.
        labels: from `envkit.engines.labels.image_labels`.
        platform: 'linux-64' or 'linux-aarch64'.

    Raises:
        EngineError: more than 127 layers.
    """
    stack = (*base.layers, *layers)
    if len(stack) > MAX_LAYERS:
        raise EngineError(
            f"the image has {len(stack)} layers, but engines support at most {MAX_LAYERS}",
            hint="use --base with an image that has fewer layers",
        )
    created = labels.get(f"{_OCI_LABEL}created", CREATED)
    known = platforms.platform(platform)
    config = canonical(
        {
            "architecture": known.architecture,
            **({"variant": known.variant} if known.variant else {}),
            "os": "linux",
            "created": created,
            "config": _config(base.config, runtime, labels),
            "rootfs": {"type": "layers", "diff_ids": [stacked_layer.diff_id for stacked_layer in stack]},
            "history": [*_history_of(base), *_history(layers, created)],
        }
    )
    # Annotations can be read without fetching the configuration, which has the labels.
    annotations = {
        key: value for key, value in labels.items() if key.startswith(_OCI_LABEL) or key == f"{LABEL_PREFIX}.plan"
    }
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": Descriptor(media_type=CONFIG, digest=sha256(config), size=len(config)).to_json(),
            "layers": [stacked_layer.descriptor.to_json() for stacked_layer in stack],
            **({"annotations": annotations} if annotations else {}),
        }
    )
    return Image(manifest=manifest, config=config, layers=stack)


def index(image: Image, name: str) -> bytes:
    """Return the index of a layout with one image; `name` is its name for tools (`oci:DIR:NAME`)."""
    row = image.descriptor.to_json() | {"annotations": {f"{_OCI_LABEL}ref.name": name}}
    return canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": [row]})


def canonical(tree: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8 with sorted keys and without spaces."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256(data: bytes) -> str:
    """Return `sha256:` and the hexadecimal digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _config(inherited: Mapping[str, Any], runtime: Runtime, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the `config` member as a Dockerfile on this base would set it; the base's command is not inherited."""
    env = dict(pair.split("=", 1) for pair in inherited.get("Env") or () if "=" in pair) | dict(runtime.env)
    settings: dict[str, Any] = {
        "Env": [f"{key}={value}" for key, value in env.items()],
        "User": runtime.user,
        "WorkingDir": runtime.workdir,
        "Entrypoint": list(runtime.entrypoint),
        "Cmd": list(runtime.cmd),
        "StopSignal": runtime.stop_signal,
        "Labels": {**(inherited.get("Labels") or {}), **labels},
    }
    for key, own in (("ExposedPorts", runtime.ports), ("Volumes", runtime.volumes)):
        settings[key] = {**(inherited.get(key) or {}), **{name: {} for name in own}}
    # Engines omit empty members as well (omitempty in Go).
    return {key: value for key, value in settings.items() if value}


def _history_of(base: Base) -> list[Mapping[str, Any]]:
    """Return the base's history if it has an entry for each layer, else new entries.

    Readers match entries and layers by position.
    """
    if sum(not row.get("empty_layer") for row in base.history) == len(base.layers):
        return list(base.history)
    return [{"created_by": base_layer.made_by} for base_layer in base.layers]


def _history(layers: Sequence[Layer], created: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"created": created, "created_by": own_layer.made_by} for own_layer in layers]
    # An entry without a layer, as for ENV or CMD in a Dockerfile.
    return [*rows, {"created": created, "created_by": "envkit: configuration", "empty_layer": True}]
