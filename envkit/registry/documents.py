"""Manifests and configurations of a registry, cached in a folder by their digest."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem, IntegrityError
from envkit.ground.store import write_atomic
from envkit.image import spec
from envkit.registry.registry import MAX_MANIFEST, Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.image.name import Reference
    from envkit.registry.registry import Registry

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class Documents:
    """The documents of one registry.

    Args:
        registry: the registry.
        folder: the cache, with files named by SHA-256; None caches nothing.
        offline: use only the cache.
    """

    def __init__(self, registry: Registry, folder: Path | None, *, offline: bool = False) -> None:
        self._registry, self._folder, self._offline = registry, folder, offline

    def manifest(self, reference: Reference) -> Manifest | None:
        """Return a manifest or index; None if the registry does not have it.

        Raises:
            IntegrityError: the bytes do not match the digest.
            EngineError: the registry refuses.
            EnvironmentProblem: it cannot be reached, or the document is not cached and `offline` is set.
        """
        # Only digests are looked up in the cache: a tag can have moved.
        data = self._kept(reference.digest)
        if data is not None and reference.digest is not None and (kind := _kind(data)) is not None:
            return Manifest(data=data, media_type=kind, digest=reference.digest)
        self._require("the manifest", reference)
        manifest = self._registry.manifest(reference)
        if manifest is not None:
            self._keep(manifest.digest, manifest.data)
        return manifest

    def config(self, reference: Reference, digest: str) -> bytes:
        """Return the configuration of an image.

        Raises:
            As `manifest`.
        """
        data = self._kept(digest)
        if data is not None:
            return data
        self._require("the configuration", reference)
        data = self._registry.read_blob(reference.repository, digest)
        if spec.sha256(data) != digest:
            raise IntegrityError(
                f"the configuration of {reference} has the digest {spec.sha256(data)}, not {digest}",
                hint="run it again",
            )
        self._keep(digest, data)
        return data

    def _require(self, what: str, reference: Reference) -> None:
        if self._offline:
            raise EnvironmentProblem(
                f"offline, and {what} of {reference} is not in {self._folder}", hint="run once without --offline"
            )

    def _kept(self, digest: str | None) -> bytes | None:
        """Return the cached document of a digest; None if it is missing or damaged."""
        path = self._path(digest)
        if path is None or digest is None:
            return None
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST + 1)
        except OSError:
            return None
        return data if spec.sha256(data) == digest else None

    def _keep(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        if path is not None:
            with contextlib.suppress(OSError):  # without the cached file, it is just fetched again
                write_atomic(path, data)

    def _path(self, digest: str | None) -> Path | None:
        match = _DIGEST.fullmatch(digest or "")
        return self._folder / match[1] if match and self._folder is not None else None


def _kind(data: bytes) -> str | None:
    """Return the media type in a manifest; those without one are fetched again, because the registry states it."""
    try:
        media_type = json.loads(data).get("mediaType")
    except (ValueError, AttributeError, RecursionError):
        return None
    return media_type if isinstance(media_type, str) else None
