"""In-toto statements (v1): a predicate and the digests of its subjects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import IntegrityError
from envkit.image.spec import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.attest.subject import Subject

TYPE = "https://in-toto.io/Statement/v1"
SBOM = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"
VERIFY = "urn:envkit:verify:1"
"""The predicate is the complete record of one `envkit verify` run with its seal (schema envkit.verify/1)."""
NAMES = {SBOM: "sbom", PROVENANCE: "provenance", VERIFY: "verify"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed statement."""

    predicate_type: str
    subjects: tuple[str, ...]  # 'sha256:...'
    predicate: Mapping[str, Any]


def statement_bytes(subject: Subject, predicate_type: str, predicate: Mapping[str, Any]) -> bytes:
    """Return the bytes of a statement. Equal arguments give equal bytes.

    The subjects are the image's manifest and its configuration, because registries identify an image by the digest of
    the first and engines by that of the second.
    """
    return canonical(
        {
            "_type": TYPE,
            "subject": [
                {"name": subject.reference.place, "digest": {"sha256": _digits(subject.digest)}},
                {"name": f"{subject.reference.place} (configuration)", "digest": {"sha256": _digits(subject.id)}},
            ],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def read_statement(data: bytes) -> Statement:
    """Parse a statement.

    Raises:
        IntegrityError: the statement is invalid.
    """
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the statement is not JSON") from error
    if not isinstance(tree, dict) or tree.get("_type") != TYPE:
        raise IntegrityError(f"it is not a statement of {TYPE}")
    kind, predicate, rows = tree.get("predicateType"), tree.get("predicate"), tree.get("subject")
    if not isinstance(kind, str) or not isinstance(predicate, dict) or not isinstance(rows, list) or not rows:
        raise IntegrityError("the statement has no subject, type or predicate")
    return Statement(kind, tuple(_subject(row) for row in rows), predicate)


def require_subject(statement: Statement, subject: Subject) -> None:
    """Check that a statement is about an image and nothing else.

    Raises:
        IntegrityError: the statement has another subject, or additional ones.
    """
    if subject.digest not in statement.subjects or not {subject.digest, subject.id}.issuperset(statement.subjects):
        digests = ", ".join(digest[:19] for digest in statement.subjects[:4])
        raise IntegrityError(f"the statement is about {digests}, not about this image")


def _subject(row: Any) -> str:
    digests = row.get("digest") if isinstance(row, dict) else None
    digest = digests.get("sha256") if isinstance(digests, dict) else None
    if not isinstance(digest, str):
        raise IntegrityError("the statement has a subject without a SHA-256")
    return f"sha256:{digest}"


def _digits(digest: str) -> str:
    return digest.removeprefix("sha256:")
