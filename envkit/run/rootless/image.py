"""An image that is files: its configuration and its layers, each a range of bytes with a digest to keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground.errors import IntegrityError
from envkit.image.spec import config_fault
from envkit.run.rootless.reference import is_digest

_AGAIN = "build or copy the image again: its files are damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes in a file. `digest` is None where only what they unpack to is promised."""

    path: Path
    offset: int
    size: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: the blob and the digest of the tar in it."""

    diff_id: str
    blob: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImage:
    """An image; `id` is the digest of its configuration, as every engine calls it."""

    id: str
    config: Mapping[str, Any]
    config_bytes: bytes
    tags: tuple[str, ...]
    layers: tuple[Layer, ...]
    origin: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """User, environment, entry point and the rest of what a container is started with."""
        found = self.config.get("config")
        return found if isinstance(found, dict) else {}


def digest_of(data: bytes) -> str:
    """The digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def damaged(what: str) -> IntegrityError:
    """The error for bytes that are not what they should be."""
    return IntegrityError(what, hint=_AGAIN)


def parse_config(data: bytes, where: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """An image's configuration and the digests of its layers' tars, bottom first.

    Raises:
        IntegrityError: it is not the JSON of an image.
    """
    tree = parse_json(data, where)
    rootfs = tree.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list) or not all(is_digest(one) for one in found):
        raise damaged(f"{where}: rootfs.diff_ids is no list of SHA-256 digests")
    fault = config_fault(tree)
    if fault is not None:
        raise damaged(f"{where}: {fault}")
    return tree, tuple(found)


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        IntegrityError: it is none.
    """
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{where} is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise damaged(f"{where} is not a JSON object")
    return tree
