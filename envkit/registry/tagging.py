"""Set tags in a registry: last, after verification, and replacing another image only with --replace-tag.

A build pushes its image by digest, so it is invisible to pulls by tag until the tag is set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.registry.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.image.name import Reference
    from envkit.registry.registry import Manifest, Registry


_TRIES = 3  # for setting a tag if its bytes are changed in transit


def check_tag(reference: Reference, digest: str, registry: Registry, *, replace_tag: bool) -> None:
    """Refuse a tag that points to an image other than `digest`.

    Raises:
        EngineError: the tag points to another image, or the registry refuses.
        EnvironmentProblem: the registry cannot be reached.
    """
    if replace_tag:
        return
    manifest = registry.manifest(reference)
    if manifest is not None and manifest.digest != digest:
        raise _taken(reference, manifest)


def check_target(reference: Reference, labels: Mapping[str, str], registry: Registry, *, replace_tag: bool) -> bool:
    """Check that an image can be pushed, before anything slow starts.

    The registry has to answer and accept uploads. The tag has to be free, or point to an image with these labels, which
    may be the same image. Return whether the tag is free or may be replaced, so the image does not have to be compared.

    Raises:
        EngineError: the registry refuses, or the tag names another image.
        EnvironmentProblem: the registry cannot be reached.
    """
    manifest = None if replace_tag else registry.manifest(reference)
    if manifest is not None:
        existing = _labels(manifest, reference, registry)
        if existing is not None and any(existing.get(key) != value for key, value in labels.items()):
            raise _taken(reference, manifest)
    # Detects a login without write access now instead of after the build.
    registry.try_upload(reference.repository)
    return manifest is None


def move_tag(reference: Reference, digest: str, registry: Registry, *, replace_tag: bool) -> None:
    """Set the tag of a reference to an image in the same repository, and read it back.

    Raises:
        EngineError: the tag points to another image, or the registry refuses.
        IntegrityError: the registry no longer has the image, or has other bytes.
        EnvironmentProblem: it cannot be reached.
    """
    # The push checked this, too, but verification takes minutes, and another build may have set the tag since.
    check_tag(reference, digest, registry, replace_tag=replace_tag)
    # The manifest had no tag so far, so a garbage collection of the registry may have removed it.
    manifest = registry.manifest(reference.at(digest))
    if manifest is None:
        raise IntegrityError(f"{reference.place} no longer has {digest}", hint="run the same command to push it again")
    _set(reference, manifest, registry)


def _set(reference: Reference, wanted: Manifest, registry: Registry) -> None:
    """Store a manifest under a tag and read it back; repeat if the bytes differ.

    Registries check the digest only of manifests that are stored by digest. Stored by tag, bytes that were changed in
    transit would stay there.
    """

    def put() -> None:
        try:
            registry.put_manifest(reference, wanted.data, wanted.media_type)
            verify_manifest(reference, wanted.data, registry)
        except IntegrityError as error:
            raise TransientError(error, wait_s=0.0) from error

    registry.persist(put, tries=_TRIES)


def verify_manifest(reference: Reference, manifest: bytes, registry: Registry) -> None:
    """Read a manifest back and compare it.

    Raises:
        IntegrityError: the registry has other bytes, or none.
    """
    stored = registry.manifest(reference)
    if stored is None or stored.data != manifest:
        raise IntegrityError(
            f"{reference} was pushed as {spec.sha256(manifest)}, but the registry returns "
            f"{stored.digest if stored else 'nothing'}",
            hint="run it again; if it repeats, the registry or a proxy in front of it is damaged",
        )


def _taken(reference: Reference, manifest: Manifest) -> EngineError:
    return EngineError(
        f"{reference} already points to another image ({manifest.digest})",
        hint=f"--replace-tag moves the tag; the other image stays as {reference.place}@{manifest.digest}",
    )


def _labels(manifest: Manifest, reference: Reference, registry: Registry) -> Mapping[str, str] | None:
    """Return the labels of an image; None if the registry does not return its configuration."""
    try:
        digest = str(json.loads(manifest.data)["config"]["digest"])
        labels = json.loads(registry.read_blob(reference.repository, digest))["config"]["Labels"]
    # Without labels nothing is refused yet: `check_tag` compares digests before the tag moves.
    except EngineError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return labels if isinstance(labels, dict) else {}
