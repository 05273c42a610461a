"""What is attached to an image in its registry: small artifacts whose manifests name the image as their `subject`.

A registry lists them under /v2/NAME/referrers/DIGEST, or knows nothing of that; then those who attach keep the list
themselves, as an index under the tag `sha256-<digits of the digest>`.
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
from envkit.registry.push import Blob, Transfers
from envkit.registry.registry import MAX_MANIFEST
from envkit.registry.retry import TransientError
from envkit.registry.tagging import verify_manifest

if TYPE_CHECKING:
    from envkit.image.reference import Reference
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Answer

EMPTY = "application/vnd.oci.empty.v1+json"
"""Media type of a configuration that says nothing; its bytes are `{}`."""
MAX_BLOB = 64 << 20  # bytes of an artifact's document that is read
_NOTHING = b"{}"
_FOUND, _CREATED, _ACCEPTED, _MISSING = 200, 201, 202, 404
_MAX_REFERRERS, _MAX_PAGES = 1000, 50
_TRIES = 12  # of entering a list that others change at the same time
_SETTLE_S = 0.2  # after so long, what others did at the same time shows
_CHECK = "run it again; if it repeats, ask the registry's administrators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One document to attach to an image."""

    kind: str  # artifactType of its manifest
    media_type: str  # of the document
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, subject: spec.Descriptor) -> bytes:
        """Its manifest: the same document on the same image always has the same one."""
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
    """One entry of an image's list. Only what its manifest confirms is verified."""

    digest: str
    size: int
    kind: str | None  # artifactType, where the list says it
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What became of an artifact."""

    digest: str  # of its manifest
    listed_by: str  # 'registry' | 'tag'
    new: bool


def fallback_tag(digest: str) -> str:
    """The tag under which a list is kept where the registry keeps none: `sha256-...`."""
    return digest.replace(":", "-", 1)


def referrers(registry: Registry, image: Reference) -> tuple[Referrer, ...]:
    """What is attached to an image, which is named by digest.

    Raises:
        EngineError: the registry refuses, or its list is invalid.
        IntegrityError: the list has another digest than its tag.
        EnvironmentProblem: the registry cannot be reached.
    """
    rows = _listed_by_registry(registry, image)
    if rows is None:
        rows = _index_rows(_list_under_tag(registry, image), str(image))
    _bounded(rows, image)
    return tuple({row.digest: row for row in (_referrer(row, image) for row in rows)}.values())


def read_blob(registry: Registry, image: Reference, row: Any, *, limit: int = MAX_BLOB) -> bytes:
    """The blob that a descriptor names, in the image's repository.

    Raises:
        IntegrityError: the descriptor is invalid, or the bytes are not what it says.
        EngineError: the registry refuses, or lacks it.
        EnvironmentProblem: the registry cannot be reached.
    """
    digest, size = _named(row, image)
    if size > limit:
        raise IntegrityError(
            f"{image}: {digest} has {size} bytes, more than an attached document may have", hint=_CHECK
        )

    def ask() -> bytes:
        with registry.blob(image.repository, digest) as answer:
            return answer.read(limit)

    data = registry.persist(ask)
    if spec.sha256(data) != digest or len(data) != size:
        raise IntegrityError(f"{image}: {digest} holds other bytes ({spec.sha256(data)})", hint=_CHECK)
    return data


def attach(registry: Registry, image: Reference, subject: spec.Descriptor, artifact: Artifact) -> Attached:
    """Push an artifact and see that it is listed; one that is there already is left alone.

    Args:
        registry: the image's.
        image: named by digest.
        subject: the image's manifest.
        artifact: what to attach.

    Raises:
        EngineError: the registry refuses it, or others changed the list all the time.
        IntegrityError: the registry holds other bytes than were sent.
        EnvironmentProblem: it cannot be reached.
    """
    data = artifact.manifest(subject)
    digest = spec.sha256(data)
    known = {row.digest for row in referrers(registry, image)}
    target = replace(image, tag=None, digest=digest)
    # A list under a tag is kept by clients: it may name a manifest that the registry lost.
    if digest in known:
        verify_manifest(target, data, registry)
        return Attached(digest=digest, listed_by="", new=False)
    transfers = Transfers(registry, image, ())
    for blob in (_NOTHING, artifact.data):
        transfers.blob(Blob(spec.sha256(blob), len(blob), None, blob, None))
    listed = _put(registry, target, data)
    verify_manifest(target, data, registry)
    if not listed:
        _enter(registry, image, artifact, data)
    return Attached(digest=digest, listed_by="registry" if listed else "tag", new=True)


def _put(registry: Registry, target: Reference, data: bytes) -> bool:
    """Store the artifact's manifest; whether the registry understood whose it is."""

    def put() -> bool:
        path = f"{target.repository}/manifests/{target.digest}"
        headers = {"Content-Type": spec.MANIFEST}
        with registry.request("PUT", path, _scopes(target), headers=headers, body=data) as answer:
            registry.expect(answer, (_CREATED, _FOUND, _ACCEPTED), f"attaching to {target}")
            # With this header a registry says that it lists the manifest ("Pushing Manifests with Subject").
            return "oci-subject" in answer.headers

    return registry.persist(put)


def _enter(registry: Registry, image: Reference, artifact: Artifact, data: bytes) -> None:
    """Add an artifact to the list under the image's tag, until it shows there: others may write at the same time."""
    digest = spec.sha256(data)
    own = _descriptor(spec.MANIFEST, data).to_json() | {"artifactType": artifact.kind}
    if artifact.annotations:
        own["annotations"] = dict(artifact.annotations)
    tag = replace(image, tag=fallback_tag(image.digest or ""), digest=None)

    def enter() -> None:
        tree = _list_under_tag(registry, image)
        rows = _index_rows(tree, str(image))
        if not _is_in(rows, digest):
            whole = {**tree, "schemaVersion": 2, "mediaType": spec.INDEX, "manifests": [*rows, own]}
            registry.put_manifest(tag, spec.canonical(whole), spec.INDEX)
        # A client that read the list before this update replaces it once more, and soon.
        time.sleep(_SETTLE_S)
        if not _is_in(_index_rows(_list_under_tag(registry, image), str(image)), digest):
            final = EngineError(
                f"other clients kept changing {tag}; {digest} is pushed but not listed there",
                hint="run it again when no one else attaches to this image",
            )
            raise TransientError(final, wait_s=0.0)

    registry.persist(enter, tries=_TRIES)


def _bounded(rows: list[Any], image: Reference) -> None:
    if len(rows) > _MAX_REFERRERS:
        raise EngineError(f"{image} has {len(rows)} attached documents, more than envkit can read", hint=_CHECK)


def _is_in(rows: list[Any], digest: str) -> bool:
    return any(isinstance(row, dict) and row.get("digest") == digest for row in rows)


def _listed_by_registry(registry: Registry, image: Reference) -> list[Any] | None:
    """The rows of a registry's own list; None where it keeps none."""
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
        with registry.request("GET", path, _pull(image), headers={"Accept": spec.INDEX}) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0].strip()
            # Registries without such a list answer in their own ways: no such page, no such name, a web page.
            if answer.status in (400, _MISSING, 405, 406) or (answer.status == _FOUND and kind != spec.INDEX):
                return None
            registry.expect(answer, (_FOUND,), f"asking what is attached to {image}")
            data = answer.read(MAX_MANIFEST)
            return _index_rows(
                parse_json(data, f"{image}: the list of attached documents", hint=_CHECK), str(image)
            ), _next(answer)

    return registry.persist(ask)


def _next(answer: Answer) -> str | None:
    """The next page's URL (RFC 8288): `<URL>; rel="next"`; it leads no further than a redirect may."""
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
        raise EngineError(f"{tag} is {manifest.media_type or 'nothing'}, not a list of attached documents", hint=_CHECK)
    return tree


def _index_rows(tree: dict[str, Any], what: str) -> list[Any]:
    rows = tree.get("manifests")
    if not isinstance(rows, list):
        raise IntegrityError(f"{what}: the list of attached documents is damaged", hint=_CHECK)
    return rows


def _referrer(row: Any, image: Reference) -> Referrer:
    digest, size = _named(row, image)
    kind, annotations = row.get("artifactType"), row.get("annotations")
    return Referrer(
        digest=digest,
        size=size,
        kind=kind if isinstance(kind, str) else None,
        annotations=annotations if isinstance(annotations, dict) else {},
    )


def _named(row: Any, image: Reference) -> tuple[str, int]:
    digest = str(row.get("digest")) if isinstance(row, dict) else ""
    digits, size = digest.removeprefix("sha256:"), row.get("size") if isinstance(row, dict) else None
    whole = len(digits) == 64 and not digits.strip("0123456789abcdef") and digest.startswith("sha256:")  # noqa: PLR2004
    if not whole or not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise IntegrityError(f"{image}: {row!r:.120} names no document", hint=_CHECK)
    return digest, size


def _descriptor(media_type: str, data: bytes) -> spec.Descriptor:
    return spec.Descriptor(media_type=media_type, digest=spec.sha256(data), size=len(data))


def _pull(image: Reference) -> tuple[str, ...]:
    return (f"repository:{image.repository}:pull",)


def _scopes(image: Reference) -> tuple[str, ...]:
    return (f"repository:{image.repository}:pull,push",)
