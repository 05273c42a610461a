"""Attachments of images in a registry: small artifacts whose manifests have the image as their `subject`.

Registries list them under /v2/NAME/referrers/DIGEST. For registries without this list, clients maintain one themselves,
as an index with the tag `sha256-<digits of the digest>`.
Source: OCI distribution specification 1.1, "Listing Referrers" and "Referrers Tag Schema"; image specification 1.1,
"Guidelines for Artifact Usage".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.document import parse_json
from envkit.image.name import is_digest
from envkit.registry.push import Blob, Transfers
from envkit.registry.registry import MAX_MANIFEST, pull_scopes, push_scopes
from envkit.registry.retry import TransientError
from envkit.registry.tagging import verify_manifest

if TYPE_CHECKING:
    from envkit.image.name import Reference
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Answer

EMPTY = "application/vnd.oci.empty.v1+json"
"""Media type of an empty configuration, whose bytes are `{}`."""
MAX_BLOB = 64 << 20  # maximum bytes of an attached document
_NOTHING = b"{}"
_FOUND, _CREATED, _ACCEPTED, _MISSING = 200, 201, 202, 404
# Limits, because a registry could send entries or pages without end.
_MAX_REFERRERS, _MAX_PAGES = 1000, 50
_TRIES = 12  # for adding to a list that other clients change at the same time
_SETTLE_S = 0.2  # time until concurrent changes of other clients are visible
_CHECK = "run it again; if it repeats, ask the registry's administrators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A document to attach to an image."""

    kind: str  # artifactType of its manifest
    media_type: str  # of the document
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, subject: spec.Descriptor) -> bytes:
        """Return its manifest. The same document for the same image always gives the same bytes."""
        return spec.canonical(
            {
                "schemaVersion": 2,
                "mediaType": spec.MANIFEST,
                "artifactType": self.kind,
                "config": _descriptor(EMPTY, _NOTHING).to_json(),
                "layers": [_descriptor(self.media_type, self.data).to_json()],
                "subject": subject.to_json(),
                **({"annotations": dict(self.annotations)} if self.annotations else {}),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Referrer:
    """An entry in the list of an image's attachments. Its fields are not verified; the manifest is authoritative."""

    digest: str
    size: int
    kind: str | None  # artifactType, if the list has it
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """The result of attaching an artifact."""

    digest: str  # of its manifest
    listed_by: str  # 'registry' | 'tag'
    new: bool


def fallback_tag(digest: str) -> str:
    """Return the tag of the list of attachments in registries without the referrers API: `sha256-...`."""
    return digest.replace(":", "-", 1)


def referrers(registry: Registry, image: Reference) -> tuple[Referrer, ...]:
    """Return the attachments of an image, given by digest.

    Raises:
        EngineError: the registry refuses, or its list is invalid.
        IntegrityError: the list does not match its digest.
        EnvironmentProblem: the registry cannot be reached.
    """
    rows = _listed_by_registry(registry, image)
    if rows is None:
        rows = _index_rows(_list_under_tag(registry, image), str(image))
    _bounded(rows, image)
    return tuple({row.digest: row for row in (_referrer(row, image) for row in rows)}.values())


def read_blob(registry: Registry, image: Reference, row: Any, *, limit: int = MAX_BLOB) -> bytes:
    """Return the blob of a descriptor from the image's repository.

    Raises:
        IntegrityError: the descriptor is invalid, or the bytes do not match it.
        EngineError: the registry refuses, or does not have it.
        EnvironmentProblem: the registry cannot be reached.
    """
    digest, size = _digest_and_size(row, image)
    if size > limit:
        raise IntegrityError(f"{image}: the attached document {digest} is too large: {size} bytes", hint=_CHECK)
    data = registry.read_blob(image.repository, digest, limit)
    if spec.sha256(data) != digest or len(data) != size:
        raise IntegrityError(f"{image}: {digest} has other bytes ({spec.sha256(data)})", hint=_CHECK)
    return data


def attach(registry: Registry, image: Reference, subject: spec.Descriptor, artifact: Artifact) -> Attached:
    """Push an artifact and make sure that it is listed. If it is already attached, nothing is sent.

    Args:
        registry: the registry of the image.
        image: the image, by digest.
        subject: the descriptor of the image's manifest.
        artifact: what to attach.

    Raises:
        EngineError: the registry refuses it, or other clients kept changing the list.
        IntegrityError: the registry has other bytes than were sent.
        EnvironmentProblem: it cannot be reached.
    """
    data = artifact.manifest(subject)
    digest = spec.sha256(data)
    known = {row.digest for row in referrers(registry, image)}
    target = replace(image, tag=None, digest=digest)
    # A list with a tag is maintained by clients, so it can contain manifests that the registry no longer has.
    if digest in known:
        verify_manifest(target, data, registry)
        return Attached(digest=digest, listed_by="", new=False)
    transfers = Transfers(registry, image, ())
    # Before the manifest: a registry may refuse one with missing blobs, the empty configuration included.
    for blob in (_NOTHING, artifact.data):
        transfers.blob(Blob(spec.sha256(blob), len(blob), None, blob, None))
    listed = _put(registry, target, data)
    verify_manifest(target, data, registry)
    if not listed:
        _add_to_list(registry, image, artifact, data)
    return Attached(digest=digest, listed_by="registry" if listed else "tag", new=True)


def _put(registry: Registry, target: Reference, data: bytes) -> bool:
    """Store the artifact's manifest; return whether the registry lists it."""

    def put() -> bool:
        path = f"{target.repository}/manifests/{target.digest}"
        headers = {"Content-Type": spec.MANIFEST}
        with registry.request("PUT", path, push_scopes(target.repository), headers=headers, body=data) as answer:
            registry.expect(answer, (_CREATED, _FOUND, _ACCEPTED), f"attaching to {target}")
            # This header states that the registry lists the manifest ("Pushing Manifests with Subject").
            return "oci-subject" in answer.headers

    return registry.persist(put)


def _add_to_list(registry: Registry, image: Reference, artifact: Artifact, data: bytes) -> None:
    """Add an artifact to the list with the image's tag; repeat while concurrent changes of other clients remove it."""
    digest = spec.sha256(data)
    entry = _descriptor(spec.MANIFEST, data).to_json() | {"artifactType": artifact.kind}
    if artifact.annotations:
        entry["annotations"] = dict(artifact.annotations)
    tag = replace(image, tag=fallback_tag(image.digest or ""), digest=None)

    def add() -> None:
        tree = _list_under_tag(registry, image)
        rows = _index_rows(tree, str(image))
        # The specification has no conditional update of a tag, so a lost update is only found by reading again.
        if not _is_in(rows, digest):
            index = {**tree, "schemaVersion": 2, "mediaType": spec.INDEX, "manifests": [*rows, entry]}
            registry.put_manifest(tag, spec.canonical(index), spec.INDEX)
        # A client that read the list before this change will soon overwrite it.
        time.sleep(_SETTLE_S)
        if not _is_in(_index_rows(_list_under_tag(registry, image), str(image)), digest):
            final = EngineError(
                f"other clients kept changing {tag}; {digest} is pushed but not listed there",
                hint="run it again when no one else attaches to this image",
            )
            raise TransientError(final, wait_s=0.0)

    registry.persist(add, tries=_TRIES)


def _bounded(rows: list[Any], image: Reference) -> None:
    if len(rows) > _MAX_REFERRERS:
        raise EngineError(f"{image} has {len(rows)} attached documents, more than {_MAX_REFERRERS}", hint=_CHECK)


def _is_in(rows: list[Any], digest: str) -> bool:
    return any(isinstance(row, dict) and row.get("digest") == digest for row in rows)


def _listed_by_registry(registry: Registry, image: Reference) -> list[Any] | None:
    """Return the entries of a registry's own list; None if it has none."""
    path: str | None = f"{image.repository}/referrers/{image.digest}"
    rows: list[Any] = []
    for _ in range(_MAX_PAGES):
        if path is None:
            return rows
        page = _page(registry, image, path)
        if page is None:
            return None
        entries, path = page
        rows += entries
        _bounded(rows, image)
    raise EngineError(f"{image}: the registry's list of attached documents does not end", hint=_CHECK)


def _page(registry: Registry, image: Reference, path: str) -> tuple[list[Any], str | None] | None:

    def ask() -> tuple[list[Any], str | None] | None:
        with registry.request("GET", path, pull_scopes(image.repository), headers={"Accept": spec.INDEX}) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0].strip()
            # Registries without this list answer with different errors, or with a web page.
            if answer.status in (400, _MISSING, 405, 406) or (answer.status == _FOUND and kind != spec.INDEX):
                return None
            registry.expect(answer, (_FOUND,), f"asking what is attached to {image}")
            data = answer.read(MAX_MANIFEST)
            return _index_rows(
                parse_json(data, f"{image}: the list of attached documents", hint=_CHECK), str(image)
            ), _next(answer)

    return registry.persist(ask)


def _next(answer: Answer) -> str | None:
    """Return the URL of the next page (RFC 8288): `<URL>; rel="next"`; the rules for redirects apply to it."""
    link = answer.headers.get("link", "")
    # RFC 8288 allows the value without quotes.
    if not link or 'rel="next"' not in link.replace("rel=next", 'rel="next"'):
        return None
    return answer.leads_to(link.partition("<")[2].partition(">")[0])


def _list_under_tag(registry: Registry, image: Reference) -> dict[str, Any]:
    tag = replace(image, tag=fallback_tag(image.digest or ""), digest=None)
    manifest = registry.manifest(tag)
    if manifest is None:
        return {"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": []}
    tree = parse_json(manifest.data, f"{tag}: the list of attached documents", hint=_CHECK)
    if manifest.media_type != spec.INDEX:
        raise EngineError(
            f"{tag} is not a list of attached documents ({manifest.media_type or 'without a media type'})", hint=_CHECK
        )
    return tree


def _index_rows(tree: dict[str, Any], what: str) -> list[Any]:
    rows = tree.get("manifests")
    if not isinstance(rows, list):
        raise IntegrityError(f"{what}: the list of attached documents is damaged", hint=_CHECK)
    return rows


def _referrer(row: Any, image: Reference) -> Referrer:
    digest, size = _digest_and_size(row, image)
    kind, annotations = row.get("artifactType"), row.get("annotations")
    return Referrer(
        digest=digest,
        size=size,
        kind=kind if isinstance(kind, str) else None,
        annotations=annotations if isinstance(annotations, dict) else {},
    )


def _digest_and_size(row: Any, image: Reference) -> tuple[str, int]:
    digest, size = (row.get("digest"), row.get("size")) if isinstance(row, dict) else (None, None)
    # Not `isinstance`, for which `true` is an integer.
    if not is_digest(digest) or type(size) is not int or size < 0:
        raise IntegrityError(f"{image}: {row!r:.120} is not a valid descriptor", hint=_CHECK)
    return str(digest), size


def _descriptor(media_type: str, data: bytes) -> spec.Descriptor:
    return spec.Descriptor(media_type=media_type, digest=spec.sha256(data), size=len(data))
