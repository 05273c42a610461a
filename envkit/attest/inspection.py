"""Inspect an image: its contents, the machines that verified it by its attestations, and what was never verified.

With keys or identities only what they signed counts; anything broken, unsigned or signed by another identity is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envkit.attest import sbom
from envkit.attest.attached import Attachments, Attestation, Status
from envkit.attest.content import WHEEL, Content
from envkit.attest.coverage import Coverage, coverage
from envkit.attest.diff import stack
from envkit.attest.statement import NAMES, SBOM, VERIFY
from envkit.attest.verification import Verification, exercised, verification_of
from envkit.ground.errors import EnvkitError, IntegrityError, NotVerifiedError, VerificationError
from envkit.ground.progress import counted
from envkit.image.packages import CONDA, DEB, PYPI, RPM
from envkit.image.spec import CREATED, LABEL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.attest.listing import Listing

SCHEMA = "envkit.inspect/1"
_OCI = "org.opencontainers.image."
_CONTENT = ("torch", "cuda", "cudnn", "nccl", "python", "source", "platform", "flavor", "template", "features")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """An image as it was found: in a registry with what is attached, or in a folder, where nothing is."""

    name: str
    digest: str | None
    id: str
    config: Mapping[str, Any]
    labels: Mapping[str, str]
    layer_sizes: tuple[int, ...] | None  # bytes, lowest first; None: an engine does not tell them
    attached: Attachments | None  # None: the place knows no attachments
    content: Content = field(default_factory=lambda: Content(name="", kind=""))
    listing: Listing | None = None  # None: not asked for

    @property
    def size(self) -> int | None:
        """Bytes of all layers; as the engine counts for an engine's image."""
        return self.content.size if self.layer_sizes is None else sum(self.layer_sizes)

    @property
    def layer_count(self) -> int:
        """How many layers it has."""
        return len(self.content.layers or () if self.layer_sizes is None else self.layer_sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One verification and how far it can be believed."""

    attestation: Attestation
    verification: Verification
    counts: bool  # False: its signature is not by one of the keys that were given


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The whole answer."""

    looked: Looked
    trusted: tuple[str, ...]  # ids of the keys, and the identities, that were given
    evidence: tuple[Evidence, ...]  # oldest first
    coverage: Coverage
    packages: Mapping[str, int] | None = None  # by kind; None: nothing that counts tells them
    packages_from: str | None = None  # 'sbom', or as `Content.packages_from`
    refused: tuple[str, ...] = field(default=())  # why, for each attestation that is not to be believed

    @property
    def verifications(self) -> tuple[Evidence, ...]:
        """The verifications that count and held, oldest first."""
        return tuple(evidence for evidence in self.evidence if evidence.counts and evidence.verification.holds)

    @property
    def verdict(self) -> str:
        """'refused' | 'failed' | 'proved' | 'not proved', as documents say; a success outweighs no failure."""
        if self.refused:
            return "refused"
        newest = newest_by_machine(self.evidence)
        if any(evidence.verification.failed for evidence in newest):
            return "failed"
        return "proved" if self.verifications else "not proved"

    @property
    def signed(self) -> bool:
        """Whether every verification that counts is signed by a key or an identity that was given."""
        rows = [evidence for evidence in self.evidence if evidence.counts]
        return bool(rows) and all(_valid(evidence.attestation) for evidence in rows)

    def failure(self, *, require_verified: bool) -> EnvkitError | None:
        """What the exit code has to say beside the answer; None for 0."""
        name = self.looked.name
        if self.refused:
            return IntegrityError(
                f"{name}: {len(self.refused)} of the attached documents refused",
                details=self.refused,
                hint="do not trust the image before you know who changed it; pass every key that you trust with --key",
            )
        if self.trusted and not any(_valid(attestation) for attestation in self._attestations()):
            others = len(self._attestations())
            return NotVerifiedError(
                f"{name}: none of {counted(others, 'attached document')} is signed by a given key"
                if others
                else f"{name}: no document is attached",
                hint="envkit attest IMAGE --record FILE --key FILE",
            )
        if not require_verified or self.verdict == "proved":
            return None
        if self.verdict == "failed":
            return VerificationError(f"{name} failed its latest verification", hint=f"envkit inspect {name}")
        return NotVerifiedError(
            f"{name} was not verified on any machine", hint=f"envkit verify registry:{name} -o record.json"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree of schema envkit.inspect/1."""
        looked, labels = self.looked, self.looked.labels
        attached = looked.attached
        return {
            "schema": SCHEMA,
            "image": looked.name,
            "digest": looked.digest,
            "id": looked.id,
            "title": labels.get(f"{_OCI}title"),
            "created": created(looked),
            "size_bytes": looked.size,
            "layers": looked.layer_count,
            "contents": {name: labels.get(f"{LABEL_PREFIX}.{name}") for name in _CONTENT},
            "stack": stack(looked.content),
            "user": looked.content.user or None,
            "workdir": looked.content.workdir or None,
            "entrypoint": list(looked.content.entrypoint),
            "cmd": list(looked.content.cmd),
            "ports": list(looked.content.ports),
            "labels": dict(labels),
            "base": {"name": labels.get(f"{_OCI}base.name"), "digest": labels.get(f"{_OCI}base.digest")},
            "envkit": {name: labels.get(f"{LABEL_PREFIX}.{name}") for name in ("version", "plan", "lock", "facts")},
            "packages": None if self.packages is None else dict(self.packages),
            "packages_from": self.packages_from,
            "listing": looked.listing and looked.listing.to_json(),
            "notes": list(looked.content.notes),
            "verdict": self.verdict,
            "verdict_signed": self.signed,
            "since": self.verifications[0].verification.started if self.verifications else None,
            "verifications": [
                {
                    **evidence.verification.to_json(),
                    "signature": str(evidence.attestation.status),
                    "attestation": evidence.attestation.digest,
                    "counts": evidence.counts,
                }
                for evidence in self.evidence
            ],
            "coverage": self.coverage.to_json(),
            "trusted": list(self.trusted),
            "attestations": None
            if attached is None
            else [attestation.to_json() for attestation in attached.attestations],
            "others": []
            if attached is None
            else [{"digest": digest, "kind": kind} for digest, kind in attached.others],
            "refused": list(self.refused),
        }

    def _attestations(self) -> tuple[Attestation, ...]:
        return () if self.looked.attached is None else self.looked.attached.attestations


def inspection(looked: Looked, trusted: Sequence[str]) -> Inspection:
    """Judge what an image carries by whose signatures count; without any, unsigned words count and are marked.

    Args:
        looked: the image, its attestations judged by those very keys and identities.
        trusted: their names.
    """
    rows = () if looked.attached is None else looked.attached.attestations
    evidence = sorted(
        (
            Evidence(
                attestation=attestation,
                verification=verification_of(attestation.statement.predicate),
                counts=not trusted or _valid(attestation),
            )
            for attestation in rows
            if attestation.statement is not None and attestation.statement.predicate_type == VERIFY
        ),
        key=lambda row: (row.verification.started, row.attestation.digest),
    )
    bills = [
        attestation
        for attestation in rows
        if attestation.statement is not None and attestation.statement.predicate_type == SBOM
    ]
    counted = [
        attestation
        for attestation in bills
        if attestation.statement is not None and (not trusted or _valid(attestation))
    ]
    cards = [card for row in evidence if row.counts for card in exercised(row.verification)]
    packages, origin = _counts(looked, counted[0] if counted else None)
    return Inspection(
        looked=looked,
        trusted=tuple(trusted),
        evidence=tuple(evidence),
        coverage=coverage(looked.labels, cards),
        packages=packages,
        packages_from=origin,
        refused=tuple(why for attestation in rows if (why := _refusal(attestation, trusted=bool(trusted)))),
    )


def _counts(looked: Looked, bill: Attestation | None) -> tuple[dict[str, int] | None, str | None]:
    """How many packages of each kind there are, and what says so: the layers, a bill of materials, or the lock."""
    listed, content = looked.listing, looked.content
    if listed is not None and listed.packages is not None:
        kinds, origin = [package.kind for package in listed.packages], "layers"
    elif bill is not None and bill.statement is not None:
        return sbom.counts(bill.statement.predicate), "sbom"
    elif content.packages is not None:
        kinds = [PYPI if package.kind == WHEEL else package.kind for package in content.packages]
        origin = content.packages_from or "layers"
    else:
        return None, None
    return {kind: kinds.count(kind) for kind in (CONDA, PYPI, DEB, RPM) if kind != RPM or RPM in kinds}, origin


def newest_by_machine(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The last verification that counts of each kind of machine: GPUs, drivers and processor."""
    newest: dict[tuple[Any, ...], Evidence] = {}
    for entry in evidence:
        if entry.counts:
            newest[entry.verification.cards, entry.verification.cpu if not entry.verification.cards else None] = entry
    return tuple(newest.values())


def created(looked: Looked) -> str | None:
    """When the image says that it was made; None where it says nothing, so that the same input gives the same image."""
    timestamp = looked.config.get("created")
    return timestamp if isinstance(timestamp, str) and timestamp != CREATED else None


def _valid(attestation: Attestation) -> bool:
    return attestation.status is Status.VALID


def _refusal(attestation: Attestation, *, trusted: bool) -> str | None:
    name = f"{attestation.kind} {attestation.digest[7:19]}"
    if attestation.status is Status.BROKEN:
        return f"{name} is broken: {attestation.why}"
    if not trusted or _valid(attestation) or attestation.kind not in NAMES.values():
        return None
    if attestation.status is Status.UNSIGNED:
        return f"{name} is not signed"
    return f"{name} is signed by another key: {(attestation.keyid or 'not named')[:16]}"
