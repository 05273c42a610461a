"""Documents of images from any source: each a JSON object whose descriptors and configuration can be trusted.

Nothing of a registry, an archive or a layout is used before it passed here. Digests are checked by the reader that has
the bytes; what is checked here is that they mean what the image specification says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground import platforms
from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.reference import is_digest

MOST_BYTES = 8 << 20
"""Bytes of a manifest, an index or a configuration."""
INDEXES = (spec.INDEX, spec.DOCKER_INDEX)
MANIFESTS = (spec.MANIFEST, spec.DOCKER_MANIFEST)
_NAME = "org.opencontainers.image.ref.name"
_PORT = re.compile(r"(?P<number>[0-9]{1,5})(?:/(?P<kind>tcp|udp|sctp))?")
_LAST_PORT = 65535
_AGAIN = "build or copy the image again: its files are damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of an index: what it names, and what it says of that."""

    descriptor: spec.Descriptor
    name: str  # that tools ask for; empty: none
    platform: str  # 'linux/amd64', 'linux/arm64/v8'; empty: not told

    @property
    def digest(self) -> str:
        """What it names."""
        return self.descriptor.digest


def damaged(what: str) -> IntegrityError:
    """The error for bytes that are not what they should be."""
    return IntegrityError(what, hint=_AGAIN)


def parse_json(data: bytes, where: str, *, hint: str = _AGAIN) -> dict[str, Any]:
    """A JSON object.

    Raises:
        IntegrityError: the bytes are not a JSON object; `hint` is the next step.
    """
    try:
        tree = json.loads(data)
    # The parser calls itself for every level, and a hostile document can have more than Python allows.
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} is not JSON: {error}", hint=hint) from error
    if not isinstance(tree, dict):
        raise IntegrityError(f"{where} is not a JSON object", hint=hint)
    return tree


def parse_config(data: bytes, where: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """An image's configuration and the digests of its layers' tars, bottom first.

    Raises:
        IntegrityError: it is not the JSON of an image.
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
    """A descriptor whose digest and size can be trusted to be a digest and a size.

    Raises:
        IntegrityError: the descriptor is invalid.
    """
    if not isinstance(tree, dict) or not is_digest(tree.get("digest")):
        digest = tree.get("digest") if isinstance(tree, dict) else tree
        raise damaged(f"{where}: a descriptor without a SHA-256 digest: {digest!r:.100}")
    # Not `isinstance`, which takes `true` for 1.
    if type(tree.get("size")) is not int or tree["size"] < 0:
        raise damaged(f"{where}: {tree['digest']} has no size")
    kind = tree.get("mediaType")
    return spec.Descriptor(media_type=kind if isinstance(kind, str) else "", digest=tree["digest"], size=tree["size"])


def rows(tree: Mapping[str, Any], where: str) -> tuple[Row, ...]:
    """The rows of an index.

    Raises:
        EngineError: it names no image.
        IntegrityError: a row is not a descriptor.
    """
    listed = tree.get("manifests")
    if not isinstance(listed, list) or not listed:
        raise EngineError(f"there is no image in {where}", hint="envkit build --engine embedded --output oci:DIR")
    return tuple(_row(row, where) for row in listed)


def _row(tree: Any, where: str) -> Row:
    named = descriptor(tree, where)
    annotations, platform = tree.get("annotations") or {}, tree.get("platform")
    if not isinstance(annotations, dict):
        raise damaged(f"{where}: {named.digest} has annotations that are not a mapping")
    parts = [platform.get(key) for key in ("os", "architecture", "variant")] if isinstance(platform, dict) else []
    return Row(
        descriptor=named,
        name=str(annotations.get(_NAME) or ""),
        platform="/".join(str(part) for part in parts if part),
    )


def is_index(tree: Mapping[str, Any]) -> bool:
    """Whether a document lists images instead of being one."""
    return "manifests" in tree or tree.get("mediaType") in INDEXES


def fitting(found: Sequence[Row], platform: str) -> Row | None:
    """The image for a platform (`linux/amd64`), None where there is none; an index may list attachments, too."""
    for row in found:
        # An image for amd64/v3 does not run on every amd64, one for arm64/v8 on every arm64.
        if row.platform in (platform, f"{platform}/v8") and row.descriptor.media_type in ("", *MANIFESTS):
            return row
    return None


def of_platform(found: Sequence[Row], where: str, platform: str | None = None) -> Row:
    """The image of an index that is meant.

    Args:
        found: the rows.
        where: names the index in errors.
        platform: what it has to be for; None: this machine, or whatever the only one is for.

    Raises:
        EngineError: none is for that platform.
    """
    if platform is None and len(found) == 1:
        return found[0]
    wanted = platform or platforms.here()
    row = fitting(found, wanted)
    if row is None:
        have = sorted(
            {
                candidate.platform or "unknown"
                for candidate in found
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
    origin: str = "",
) -> spec.Image:
    """The image of a manifest and a configuration whose digests were checked.

    Args:
        manifest: its bytes.
        config: its bytes.
        where: names the image in errors.
        blob: gives the file of a layer.
        holder: the repository that holds the layers.
        tags: by which it was found.
        origin: where it was found.

    Raises:
        IntegrityError: they do not tell of the same layers.
    """
    tree, diff_ids = parse_config(config, f"the configuration of {where}")
    listed = parse_json(manifest, f"the manifest of {where}").get("layers")
    if not isinstance(listed, list) or len(listed) != len(diff_ids):
        raise damaged(f"{where}: the manifest's layers are not those of its configuration ({len(diff_ids)})")
    named = [descriptor(row, f"the manifest of {where}") for row in listed]
    if untyped := [layer.digest for layer in named if not layer.media_type]:
        raise damaged(f"{where}: layer {untyped[0]} has no media type")
    layers = [
        spec.Layer(descriptor=layer, diff_id=diff_id, made_by=made_by, blob=blob(layer), origin=holder)
        for layer, diff_id, made_by in zip(named, diff_ids, history(tree, len(diff_ids)), strict=True)
    ]
    return spec.Image(manifest=manifest, config=config, layers=tuple(layers), tags=tags, origin=origin)


def history(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """What the history says of each layer, lowest first; empty texts where it tells of another number of layers."""
    entries = [row for row in config.get("history") or () if not row.get("empty_layer")]
    return tuple(str(row.get("created_by") or "") for row in entries) if len(entries) == layers else ("",) * layers


def config_fault(tree: Mapping[str, Any]) -> str | None:
    """Return what in an image's configuration has a type that the image specification does not give it, else None.

    Engines refuse such an image; everything that reads configurations relies on these types.
    """
    settings = tree.get("config")
    if settings is not None and not isinstance(settings, dict):
        return "config is not an object"
    inner = settings or {}
    for table, names, fits, what in (
        (tree, ("architecture", "os", "created"), _is_text, "a text"),
        (inner, ("User", "WorkingDir"), _is_word, "a text"),
        (inner, ("Env", "Entrypoint", "Cmd"), _are_words, "a list of texts"),
        (inner, ("Labels",), _is_table, "an object of texts"),
        (tree, ("history",), _are_objects, "a list of objects"),
    ):
        for name in names:
            if table.get(name) is not None and not fits(table[name]):
                return f"{'config.' if table is inner else ''}{name} is not {what}: {table[name]!r:.80}"
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_word(value: object) -> bool:
    """Whether a value can be given to a program: its words end at a zero byte, and half a character has no bytes."""
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
    """The ports that an image's configuration names, `8888/tcp` each, in order; its `config` member is given."""
    exposed = settings.get("ExposedPorts")
    named = [match for port in (exposed if isinstance(exposed, dict) else ()) if (match := _PORT.fullmatch(str(port)))]
    ports = {(int(match["number"]), match["kind"] or "tcp") for match in named}
    return tuple(f"{number}/{kind}" for number, kind in sorted(ports) if 0 < number <= _LAST_PORT)


def declared_volumes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The folders that an image's configuration declares as volumes, in order; its `config` member is given."""
    paths = settings.get("Volumes")
    return tuple(sorted(str(path) for path in (paths if isinstance(paths, dict) else ()) if str(path).startswith("/")))
