"""Read an image's attestations from its registry and check them: valid, unknown key, unsigned, or broken.

Lists, annotations and key IDs of envelopes are not trusted. Every manifest and document must match its digest, its
subject must be the image, and a statement is only as trustworthy as its signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from envkit.attest import dsse, keyless
from envkit.attest.statement import NAMES, PROVENANCE, SBOM, VERIFY, Statement, read_statement, require_subject
from envkit.attest.subject import PLAN_LABEL
from envkit.attest.verification import require_record_of, verification_of
from envkit.ground.errors import EngineError, IntegrityError
from envkit.image.document import parse_json
from envkit.registry.referrers import Artifact, Referrer, read_blob, referrers

if TYPE_CHECKING:
    from envkit.attest.keyless import Identity
    from envkit.attest.keys import PublicKey
    from envkit.attest.subject import Subject
    from envkit.registry.registry import Registry

ARTIFACT = "application/vnd.in-toto+json"
"""artifactType of an attestation's manifest; the media type of its document shows whether it is signed."""
_PREDICATE = "in-toto.io/predicate-type"


class Status(StrEnum):
    """How trustworthy an attestation is."""

    VALID = "valid"  # signed by a given key or identity
    UNKNOWN_KEY = "unknown-key"  # signed by another key or identity
    UNSIGNED = "unsigned"
    BROKEN = "broken"  # bytes, signature, subject or record do not match


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """One attached document."""

    digest: str  # of its manifest
    status: Status
    kind: str  # 'sbom' | 'provenance' | 'verify' | another predicate's type | 'unknown'
    keyid: str | None = None  # ID of the signing key, or the identity in its certificate; None: unknown
    why: str | None = None  # what is broken
    payload: bytes = b""
    statement: Statement | None = None  # None if it is broken

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping, without the document."""
        return {
            "digest": self.digest,
            "kind": self.kind,
            "status": str(self.status),
            "keyid": self.keyid,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachments:
    """Everything that is attached to an image."""

    attestations: tuple[Attestation, ...]
    others: tuple[tuple[str, str], ...]  # digest and artifactType of anything else, such as other tools' signatures


def artifact(payload: bytes, predicate_type: str, sealed: bytes | None, media_type: str = dsse.MEDIA_TYPE) -> Artifact:
    """Return the artifact for a statement: its envelope or bundle, or the statement itself if it is unsigned."""
    return Artifact(
        kind=ARTIFACT,
        media_type=dsse.IN_TOTO if sealed is None else media_type,
        data=payload if sealed is None else sealed,
        annotations={_PREDICATE: predicate_type},
    )


def read_attached(
    subject: Subject, registry: Registry, keys: Sequence[PublicKey], identities: Sequence[Identity] = ()
) -> Attachments:
    """Read everything attached to an image and check each document; only an unreadable list is an error.

    Raises:
        EngineError: the registry refuses.
        IntegrityError: the list of attached documents is damaged.
        EnvironmentProblem: the registry cannot be reached.
    """
    attestations, others = [], []
    for row in referrers(registry, subject.reference):
        try:
            document = _read(row, subject, registry, keys, identities)
        except IntegrityError as error:
            document = Attestation(digest=row.digest, status=Status.BROKEN, kind="unknown", why=error.message)
        if isinstance(document, str):
            others.append((row.digest, document))
        else:
            attestations.append(document)
    order = {name: rank for rank, name in enumerate(NAMES.values())}
    return Attachments(
        attestations=tuple(
            sorted(attestations, key=lambda attestation: (order.get(attestation.kind, len(order)), attestation.digest))
        ),
        others=tuple(sorted(others)),
    )


def _read(
    row: Referrer,
    subject: Subject,
    registry: Registry,
    keys: Sequence[PublicKey],
    identities: Sequence[Identity],
) -> Attestation | str:
    """Read one attached document; return only its artifactType if it is not an attestation."""
    reference = replace(subject.reference, tag=None, digest=row.digest)
    manifest = registry.manifest(reference)
    if manifest is None:
        raise IntegrityError("it is in the registry's list, but the registry does not have it")
    tree = parse_json(manifest.data, "its manifest")
    attached_to = tree.get("subject")
    if not isinstance(attached_to, dict) or attached_to.get("digest") != subject.digest:
        raise IntegrityError("its manifest is attached to another image")
    kind = tree.get("artifactType")
    # Without artifactType, the type of an artifact is that of its configuration (OCI image specification 1.1).
    if not isinstance(kind, str):
        config = tree.get("config")
        kind = str(config.get("mediaType") if isinstance(config, dict) else None)
    if row.kind not in (None, kind) or row.size != len(manifest.data):
        raise IntegrityError("the list entry differs from its manifest")
    if kind != ARTIFACT:
        return kind
    layers = tree.get("layers")
    if not isinstance(layers, list) or len(layers) != 1 or not isinstance(layers[0], dict):
        raise IntegrityError("its manifest has no document, or several")
    try:
        data = read_blob(registry, reference, layers[0])
    # A missing blob makes this document broken; it must not hide the others.
    except EngineError as error:
        raise IntegrityError(f"its document cannot be read: {error.message}") from error
    return check_document(row.digest, str(layers[0].get("mediaType")), data, subject, keys, identities=identities)


def check_document(
    digest: str,
    media_type: str,
    data: bytes,
    subject: Subject,
    keys: Sequence[PublicKey],
    *,
    identities: Sequence[Identity] = (),
) -> Attestation:
    """Check a document and return its attestation.

    Args:
        digest: digest of the document's manifest.
        media_type: media type of the document.
        data: the document.
        subject: the image that it is attached to.
        keys: the trusted keys.
        identities: the trusted identities of sigstore.

    Raises:
        IntegrityError: the document is damaged, or about another image.
    """
    if media_type == dsse.IN_TOTO:
        status, keyid, payload = Status.UNSIGNED, None, data
    elif media_type == dsse.MEDIA_TYPE:
        envelope = dsse.unseal(data)
        payload, signer = envelope.payload, envelope.signed_by(keys)
        status = Status.UNKNOWN_KEY if signer is None else Status.VALID
        # `unseal` refuses an envelope without signatures.
        keyid = signer.id if signer is not None else envelope.signatures[0].keyid or None
    elif media_type == keyless.MEDIA_TYPE:
        payload = keyless.envelope_of(data).payload
        # Without identities nothing can become valid, so the library, an extra that uses the network, is not needed.
        identity = keyless.signer_of(data, identities) if identities else None
        status, keyid = (Status.UNKNOWN_KEY, None) if identity is None else (Status.VALID, str(identity))
    else:
        raise IntegrityError(f"its document is {media_type!r:.80}, which is not an attestation")
    statement = read_statement(payload)
    require_subject(statement, subject)
    _check_predicate(statement, subject)
    return Attestation(
        digest=digest,
        status=status,
        kind=NAMES.get(statement.predicate_type, statement.predicate_type),
        keyid=keyid,
        payload=payload,
        statement=statement,
    )


def _check_predicate(statement: Statement, subject: Subject) -> None:
    """Check that a predicate that envkit writes is consistent with itself and with the image."""
    if statement.predicate_type == VERIFY:
        require_record_of(statement.predicate, subject, "the verification")
        verification_of(statement.predicate)
    elif statement.predicate_type == SBOM:
        if not isinstance(statement.predicate.get("components", []), list):
            raise IntegrityError("the SBOM has no list of components")
    elif statement.predicate_type == PROVENANCE:
        definition = statement.predicate.get("buildDefinition")
        outer = definition.get("externalParameters") if isinstance(definition, dict) else None
        plan, label = outer.get("planDigest") if isinstance(outer, dict) else None, subject.labels.get(PLAN_LABEL)
        # The statement's own plan is compared only if the image names one: images of other builders have no such label.
        if plan is not None and label is not None and plan != label:
            raise IntegrityError(f"the provenance is of the plan {plan!s:.80}, but the image is from {label}")
