"""Manifests and configurations of a registry, kept in a folder by their digest so that they are asked for once."""

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

    from envkit.image.reference import Reference
    from envkit.registry.registry import Registry

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class Documents:
    """The documents of one registry.

    Args:
        registry: where they are asked for.
        folder: files named by SHA-256; None keeps nothing.
        offline: ask for nothing.
    """

    def __init__(self, registry: Registry, folder: Path | None, *, offline: bool = False) -> None:
        self._registry, self._folder, self._offline = registry, folder, offline

    def manifest(self, reference: Reference) -> Manifest | None:
        """A manifest or index; None when the registry has none.

        Raises:
            IntegrityError: the registry's bytes have another digest.
            EngineError: the registry refuses.
            EnvironmentProblem: it cannot be reached, or `offline` and the document is not kept.
        """
        data = self._kept(reference.digest)
        if data is not None and reference.digest is not None and (kind := _kind(data)) is not None:
            return Manifest(data=data, media_type=kind, digest=reference.digest)
        self._require("the manifest", reference)
        manifest = self._registry.manifest(reference)
        if manifest is not None:
            self._keep(manifest.digest, manifest.data)
        return manifest

    def config(self, reference: Reference, digest: str) -> bytes:
        """The configuration of an image.

        Raises:
            As `manifest`.
        """
        data = self._kept(digest)
        if data is not None:
            return data
        self._require("the configuration", reference)

        def ask() -> bytes:
            with self._registry.blob(reference.repository, digest) as answer:
                return answer.read(MAX_MANIFEST)

        data = self._registry.persist(ask)
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
        """What the folder holds under a digest; a damaged file counts as none."""
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
            with contextlib.suppress(OSError):  # then it is asked for again
                write_atomic(path, data)

    def _path(self, digest: str | None) -> Path | None:
        named = _DIGEST.fullmatch(digest or "")
        return self._folder / named[1] if named and self._folder is not None else None


def _kind(data: bytes) -> str | None:
    """The media type that a manifest gives itself; those that give none are asked for again."""
    try:
        media_type = json.loads(data).get("mediaType")
    except (ValueError, AttributeError, RecursionError):
        return None
    return media_type if isinstance(media_type, str) else None
