"""Tags of a registry. A tag is set last, after verification, and replaces another image only with --replace-tag.

A build pushes its image by digest; until the tag is set, it is invisible to pulls by tag.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.registry.registry import MAX_MANIFEST
from envkit.registry.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.image.reference import Reference
    from envkit.registry.registry import Manifest, Registry


_TRIES = 3  # of setting a tag whose bytes are changed on the way


def check_tag(reference: Reference, digest: str, registry: Registry, *, replace_tag: bool) -> None:
    """Refuse to move a tag away from another image than `digest`.

    Raises:
        EngineError: the tag names another image, or the registry refuses.
        EnvironmentProblem: the registry cannot be reached.
    """
    if replace_tag:
        return
    manifest = registry.manifest(reference)
    if manifest is not None and manifest.digest != digest:
        raise _taken(reference, manifest)


def check_target(reference: Reference, labels: Mapping[str, str], registry: Registry, *, replace_tag: bool) -> bool:
    """Check, before anything long begins, that an image can be pushed.

    The registry has to answer and take uploads, and its tag has to be free, or an image's that has these labels and so
    may be the same one. Gives whether the tag may be set to any image, so that nothing more need be known of it.

    Raises:
        EngineError: the registry refuses, or the tag names another image.
        EnvironmentProblem: the registry cannot be reached.
    """
    manifest = None if replace_tag else registry.manifest(reference)
    if manifest is not None:
        existing = _labels(manifest, reference, registry)
        if existing is not None and any(existing.get(key) != value for key, value in labels.items()):
            raise _taken(reference, manifest)
    # A login that may only read is found here, and not after the build.
    registry.try_upload(reference.repository)
    return manifest is None


def move_tag(reference: Reference, digest: str, registry: Registry, *, replace_tag: bool) -> None:
    """Set the tag of a reference to an image of the same repository, and verify it.

    Raises:
        EngineError: the tag names another image, or the registry refuses.
        IntegrityError: the registry holds other bytes than the digest says, or nothing.
        EnvironmentProblem: it cannot be reached.
    """
    # Again, although the push has looked: verification takes minutes, and another build may have set the tag since.
    check_tag(reference, digest, registry, replace_tag=replace_tag)
    # A garbage collection of the registry removes manifests without a tag, and this one had none until now.
    manifest = registry.manifest(reference.at(digest))
    if manifest is None:
        raise IntegrityError(
            f"{reference.place} no longer holds {digest}", hint="run the same command to push it again"
        )
    _set(reference, manifest, registry)


def _set(reference: Reference, wanted: Manifest, registry: Registry) -> None:
    """Put a manifest under a tag until the registry gives it back.

    A registry compares what it gets with a digest only where it is asked to store by digest. Here it is not, so bytes
    that are changed on the way would stand under the tag: they are replaced at once.
    """

    def put() -> None:
        try:
            registry.put_manifest(reference, wanted.data, wanted.media_type)
            verify_manifest(reference, wanted.data, registry)
        except IntegrityError as error:
            raise TransientError(error, wait_s=0.0) from error

    registry.persist(put, tries=_TRIES)


def verify_manifest(reference: Reference, manifest: bytes, registry: Registry) -> None:
    """Fetch a manifest back.

    Raises:
        IntegrityError: the registry gives other bytes.
    """
    stored = registry.manifest(reference)
    if stored is None or stored.data != manifest:
        raise IntegrityError(
            f"{reference} was pushed as {spec.sha256(manifest)}, and the registry gives "
            f"{stored.digest if stored else 'nothing'}",
            hint="run it again; if it repeats, the registry or a proxy in front of it is damaged",
        )


def _taken(reference: Reference, manifest: Manifest) -> EngineError:
    return EngineError(
        f"{reference} already names another image ({manifest.digest})",
        hint=f"--replace-tag moves the tag; the other image stays as {reference.place}@{manifest.digest}",
    )


def _labels(manifest: Manifest, reference: Reference, registry: Registry) -> Mapping[str, str] | None:
    """The labels of an image's configuration, None where the registry does not give it."""
    try:
        digest = str(json.loads(manifest.data)["config"]["digest"])

        def ask() -> bytes:
            with registry.blob(reference.repository, digest) as answer:
                return answer.read(MAX_MANIFEST)

        labels = json.loads(registry.persist(ask))["config"]["Labels"]
    # Unknown labels refuse nothing here: before the tag moves, `check_tag` compares digests.
    except EngineError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return labels if isinstance(labels, dict) else {}
