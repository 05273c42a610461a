"""Parse and validate the JSON documents of images: manifests, indexes and configurations.

Documents of registries, archives and layouts are used only after they were validated here against the image
specification. Their readers check the digests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground import platforms, trees
from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.name import ImageName, is_digest

MOST_BYTES = 8 << 20
"""The maximum size of a manifest, an index or a configuration, in bytes."""
INDEXES = (spec.INDEX, spec.DOCKER_INDEX)
MANIFESTS = (spec.MANIFEST, spec.DOCKER_MANIFEST)
_NAME = "org.opencontainers.image.ref.name"
_PORT = re.compile(r"(?P<number>[0-9]{1,5})(?:/(?P<kind>tcp|udp|sctp))?")
_LAST_PORT = 65535
_AGAIN = "build or copy the image again: its files are damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry of an index."""

    descriptor: spec.Descriptor
    name: str  # the tag in a layout; empty: none
    platform: str  # 'linux/amd64', 'linux/arm64/v8'; empty: unknown

    @property
    def digest(self) -> str:
        """The digest of the manifest or index."""
        return self.descriptor.digest


def damaged(what: str) -> IntegrityError:
    """Return the error for an image with damaged files."""
    return IntegrityError(what, hint=_AGAIN)


def parse_json(data: bytes, where: str, *, hint: str = _AGAIN) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        IntegrityError: the bytes are not a JSON object; its next step is `hint`.
    """
    tree = trees.from_json(data, where, surrogates=True, error=IntegrityError, hint=hint)
    if not isinstance(tree, dict):
        raise IntegrityError(f"{where} is not a JSON object", hint=hint)
    return tree


def parse_config(data: bytes, where: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return an image's configuration and the digests of its layers' tars, lowest first.

    Raises:
        IntegrityError: it is not a valid configuration.
    """
    tree = parse_json(data, where)
    rootfs = tree.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or not all(is_digest(digest) for digest in diff_ids):
        raise damaged(f"{where}: rootfs.diff_ids is not a list of SHA-256 digests")
    fault = config_fault(tree)
    if fault is not None:
        raise damaged(f"{where}: {fault}")
    return tree, tuple(diff_ids)


def descriptor(tree: Any, where: str) -> spec.Descriptor:
    """Return a descriptor after checking the types of its fields.

    Raises:
        IntegrityError: the descriptor is invalid.
    """
    if not isinstance(tree, dict) or not is_digest(tree.get("digest")):
        digest = tree.get("digest") if isinstance(tree, dict) else tree
        raise damaged(f"{where}: a descriptor has no SHA-256 digest: {digest!r:.100}")
    # Not `isinstance`, for which `true` is an integer.
    if type(tree.get("size")) is not int or tree["size"] < 0:
        raise damaged(f"{where}: {tree['digest']} has no size")
    kind = tree.get("mediaType")
    return spec.Descriptor(media_type=kind if isinstance(kind, str) else "", digest=tree["digest"], size=tree["size"])


def rows(tree: Mapping[str, Any], where: str) -> tuple[Row, ...]:
    """Return the entries of an index.

    Raises:
        EngineError: it has no entries.
        IntegrityError: an entry is invalid.
    """
    listed = tree.get("manifests")
    if not isinstance(listed, list) or not listed:
        raise EngineError(f"there is no image in {where}", hint="envkit build --engine embedded --output oci:DIR")
    return tuple(_row(row, where) for row in listed)


def _row(tree: Any, where: str) -> Row:
    manifest = descriptor(tree, where)
    annotations, platform = tree.get("annotations") or {}, tree.get("platform")
    if not isinstance(annotations, dict):
        raise damaged(f"{where}: the annotations of {manifest.digest} are not a JSON object")
    parts = [platform.get(key) for key in ("os", "architecture", "variant")] if isinstance(platform, dict) else []
    return Row(
        descriptor=manifest,
        name=str(annotations.get(_NAME) or ""),
        platform="/".join(str(part) for part in parts if part),
    )


def is_index(tree: Mapping[str, Any]) -> bool:
    """Return whether a document is an index rather than a manifest."""
    return "manifests" in tree or tree.get("mediaType") in INDEXES


def fitting(listed: Sequence[Row], platform: str) -> Row | None:
    """Return the image for a platform (`linux/amd64`); None if there is none. Attachments in the index are ignored."""
    # BuildKit's attestations are manifests of the index, too, but for the platform unknown/unknown.
    for row in listed:
        # An image for amd64/v3 does not run on every amd64; one for arm64/v8 runs on every arm64.
        if row.platform in (platform, f"{platform}/v8") and row.descriptor.media_type in ("", *MANIFESTS):
            return row
    return None


def of_platform(listed: Sequence[Row], where: str, platform: str | None = None) -> Row:
    """Return the image of an index for a platform.

    Args:
        listed: the entries of the index.
        where: the index, for errors.
        platform: the platform; None is the only entry if there is just one, else this machine's platform.

    Raises:
        EngineError: there is no image for the platform.
    """
    if platform is None and len(listed) == 1:
        return listed[0]
    wanted = platform or platforms.here()
    row = fitting(listed, wanted)
    if row is None:
        have = sorted(
            {
                candidate.platform or "unknown"
                for candidate in listed
                if candidate.descriptor.media_type in ("", *MANIFESTS)
            }
        )
        raise EngineError(f"{where} has no image for {wanted}", hint=f"it has: {', '.join(have)[:200] or 'none'}")
    return row


def image_of(
    manifest: bytes,
    config: bytes,
    where: str,
    *,
    blob: Callable[[spec.Descriptor], Path | None],
    holder: str | None = None,
    tags: tuple[str, ...] = (),
    origin: ImageName | None = None,
) -> spec.Image:
    """Return the image of a manifest and a configuration whose digests were checked.

    Args:
        manifest: the bytes of the manifest.
        config: the bytes of the configuration.
        where: the image, for errors.
        blob: returns the file of a layer.
        holder: the repository that has the layers.
        tags: the tags of the image.
        origin: where the image was read.

    Raises:
        IntegrityError: a document is invalid, or the two list different layers.
    """
    tree, diff_ids = parse_config(config, f"the configuration of {where}")
    listed = parse_json(manifest, f"the manifest of {where}").get("layers")
    if not isinstance(listed, list) or len(listed) != len(diff_ids):
        raise damaged(f"{where}: the manifest's layers are not those of its configuration ({len(diff_ids)})")
    descriptors = [descriptor(row, f"the manifest of {where}") for row in listed]
    if untyped := [layer.digest for layer in descriptors if not layer.media_type]:
        raise damaged(f"{where}: layer {untyped[0]} has no media type")
    layers = [
        spec.Layer(descriptor=layer, diff_id=diff_id, made_by=made_by, blob=blob(layer), origin=holder)
        for layer, diff_id, made_by in zip(descriptors, diff_ids, history(tree, len(diff_ids)), strict=True)
    ]
    return spec.Image(manifest=manifest, config=config, layers=tuple(layers), tags=tags, origin=origin)


def history(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Return the history entry of each layer, lowest first; empty texts if the numbers of entries and layers differ."""
    entries = [row for row in config.get("history") or () if not row.get("empty_layer")]
    return tuple(str(row.get("created_by") or "") for row in entries) if len(entries) == layers else ("",) * layers


def config_fault(tree: Mapping[str, Any]) -> str | None:
    """Return the first field of a configuration whose type violates the image specification; None if all are valid.

    Engines refuse such images, and the readers of configurations rely on these types.
    """
    settings = tree.get("config")
    if settings is not None and not isinstance(settings, dict):
        return "config is not an object"
    inner = settings or {}
    for table, names, fits, what in (
        (tree, ("architecture", "os", "created"), _is_text, "a string"),
        (inner, ("User", "WorkingDir"), _is_word, "a valid string"),
        (inner, ("Env", "Entrypoint", "Cmd"), _are_words, "a list of valid strings"),
        (inner, ("Labels",), _is_table, "an object of strings"),
        (tree, ("history",), _are_objects, "a list of objects"),
    ):
        for name in names:
            if table.get(name) is not None and not fits(table[name]):
                return f"{'config.' if table is inner else ''}{name} is not {what}: {table[name]!r:.80}"
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_word(value: object) -> bool:
    """Return whether a value can be a program's argument: no NUL, which would end it, and no surrogates."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_word, value))


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and _are_texts(list(value.values()))


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def exposed_ports(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sorted exposed ports, `8888/tcp` each, of the `config` member of an image's configuration."""
    exposed = settings.get("ExposedPorts")
    named = [match for port in (exposed if isinstance(exposed, dict) else ()) if (match := _PORT.fullmatch(str(port)))]
    # `8888` means TCP (config.md, ExposedPorts).
    ports = {(int(match["number"]), match["kind"] or "tcp") for match in named}
    return tuple(f"{number}/{kind}" for number, kind in sorted(ports) if 0 < number <= _LAST_PORT)


def declared_volumes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sorted volumes of the `config` member of an image's configuration."""
    paths = settings.get("Volumes")
    return tuple(sorted(str(path) for path in (paths if isinstance(paths, dict) else ()) if str(path).startswith("/")))
