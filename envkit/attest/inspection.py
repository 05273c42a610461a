"""Inspect an image: its contents, the machines on which it was verified, and where it was never verified.

With keys or identities, only attestations signed by them count; broken, unsigned and otherwise signed ones are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envkit.attest import sbom
from envkit.attest.attached import Attachments, Attestation, Status
from envkit.attest.content import WHEEL, Content
from envkit.attest.diff import stack
from envkit.attest.statement import NAMES, SBOM, VERIFY
from envkit.attest.verification import Coverage, Verification, coverage, exercised, verification_of
from envkit.ground.errors import EnvkitError, IntegrityError, NotVerifiedError, VerificationError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.progress import counted
from envkit.image.packages import CONDA, DEB, PYPI, RPM
from envkit.image.spec import CREATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.attest.listing import Listing
    from envkit.attest.statement import Statement

SCHEMA = "envkit.inspect/1"
_OCI = "org.opencontainers.image."
_CONTENT = ("torch", "cuda", "cudnn", "nccl", "python", "source", "platform", "flavor", "template", "features")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedImage:
    """The image to inspect, with its attachments if it is in a registry."""

    name: str
    digest: str | None
    id: str
    config: Mapping[str, Any]
    labels: Mapping[str, str]
    layer_sizes: tuple[int, ...] | None  # bytes, lowest first; None: an engine does not report them
    attached: Attachments | None  # None: not in a registry, so there are no attachments
    content: Content = field(default_factory=lambda: Content(name="", kind=""))
    listing: Listing | None = None  # None: not requested

    @property
    def size(self) -> int | None:
        """Bytes of all layers; for an image in an engine, the size that the engine reports."""
        return self.content.size if self.layer_sizes is None else sum(self.layer_sizes)

    @property
    def layer_count(self) -> int:
        """The number of layers."""
        return len(self.content.layers or () if self.layer_sizes is None else self.layer_sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A verification with the attestation that contains it."""

    attestation: Attestation
    verification: Verification
    counts: bool  # False: not signed by one of the given keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of `envkit inspect`."""

    image: InspectedImage
    trusted: tuple[str, ...]  # IDs of the given keys, and the given identities
    evidence: tuple[Evidence, ...]  # oldest first
    coverage: Coverage
    packages: Mapping[str, int] | None = None  # number by kind; None: unknown
    packages_from: str | None = None  # 'sbom', or as `Content.packages_from`
    refused: tuple[str, ...] = ()  # the reason for each attestation that is not trusted
    here: tuple[Verification, ...] = ()  # this machine's own records, newest first

    @property
    def verifications(self) -> tuple[Evidence, ...]:
        """The passing verifications that count, oldest first."""
        return tuple(evidence for evidence in self.evidence if evidence.counts and evidence.verification.holds)

    @property
    def verdict(self) -> str:
        """'refused' | 'failed' | 'proved' | 'not proved'; a failure on any machine outweighs passes on others."""
        if self.refused:
            return "refused"
        newest = newest_by_machine(self.evidence)
        if any(evidence.verification.failed for evidence in newest):
            return "failed"
        return "proved" if self.verifications else "not proved"

    @property
    def signed(self) -> bool:
        """Whether every verification that counts is signed by a given key or identity."""
        rows = [evidence for evidence in self.evidence if evidence.counts]
        return bool(rows) and all(_valid(evidence.attestation) for evidence in rows)

    def failure(self, *, require_verified: bool) -> EnvkitError | None:
        """Return the error for the exit code; None for exit code 0."""
        name = self.image.name
        if self.refused:
            return IntegrityError(
                f"{name}: {counted(len(self.refused), 'attached document')} cannot be trusted",
                details=self.refused,
                hint="find out who changed the image before you use it; pass every key that you trust with --key",
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
        """Return a JSON-ready document of schema envkit.inspect/1."""
        image, labels = self.image, self.image.labels
        attached = image.attached
        return {
            "schema": SCHEMA,
            "image": image.name,
            "digest": image.digest,
            "id": image.id,
            "title": labels.get(f"{_OCI}title"),
            "created": created(image),
            "size_bytes": image.size,
            "layers": image.layer_count,
            "contents": {name: labels.get(f"{LABEL_PREFIX}.{name}") for name in _CONTENT},
            "stack": stack(image.content),
            "user": image.content.user or None,
            "workdir": image.content.workdir or None,
            "entrypoint": list(image.content.entrypoint),
            "cmd": list(image.content.cmd),
            "ports": list(image.content.ports),
            "labels": dict(labels),
            "base": {"name": labels.get(f"{_OCI}base.name"), "digest": labels.get(f"{_OCI}base.digest")},
            "envkit": {name: labels.get(f"{LABEL_PREFIX}.{name}") for name in ("version", "plan", "lock", "facts")},
            "packages": None if self.packages is None else dict(self.packages),
            "packages_from": self.packages_from,
            "listing": image.listing and image.listing.to_json(),
            "notes": list(image.content.notes),
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
            "verified_here": [verification.to_json() for verification in self.here],
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
        return () if self.image.attached is None else self.image.attached.attestations


def inspection(image: InspectedImage, trusted: Sequence[str], here: Sequence[Verification] = ()) -> Inspection:
    """Evaluate an image's attestations; without keys and identities, unsigned ones count and are marked.

    Args:
        image: the image, with attestations that were checked with the trusted keys and identities.
        trusted: IDs of the trusted keys, and the trusted identities.
        here: the verifications of the image that this machine recorded, newest first. They are no attestations: only
            without keys and identities do they count for the coverage.
    """
    rows = () if image.attached is None else image.attached.attestations
    evidence = sorted(
        (
            Evidence(
                attestation=attestation,
                # Raises nothing: `check_document` has already summarized it.
                verification=verification_of(attestation.statement.predicate),
                counts=not trusted or _valid(attestation),
            )
            for attestation in rows
            if attestation.statement is not None and attestation.statement.predicate_type == VERIFY
        ),
        key=lambda row: (row.verification.started, row.attestation.digest),
    )
    bills = [
        attestation.statement
        for attestation in rows
        if attestation.statement is not None
        and attestation.statement.predicate_type == SBOM
        and (not trusted or _valid(attestation))
    ]
    runs = [row.verification for row in evidence if row.counts] + ([] if trusted else list(here))
    cards = [card for run in runs for card in exercised(run)]
    packages, origin = _counts(image, bills[0] if bills else None)
    return Inspection(
        image=image,
        trusted=tuple(trusted),
        evidence=tuple(evidence),
        coverage=coverage(image.labels, cards),
        packages=packages,
        packages_from=origin,
        refused=tuple(why for attestation in rows if (why := _refusal(attestation, trusted=bool(trusted)))),
        here=tuple(here),
    )


def _counts(image: InspectedImage, bill: Statement | None) -> tuple[dict[str, int] | None, str | None]:
    """Return the number of packages by kind and their source: the layers, otherwise the SBOM, otherwise the lock."""
    listed, content = image.listing, image.content
    if listed is not None and listed.packages is not None:
        kinds, origin = [package.kind for package in listed.packages], "layers"
    elif bill is not None:
        return sbom.counts(bill.predicate), "sbom"
    elif content.packages is not None:
        kinds = [PYPI if package.kind == WHEEL else package.kind for package in content.packages]
        origin = content.packages_from or "layers"
    else:
        return None, None
    return {kind: kinds.count(kind) for kind in (CONDA, PYPI, DEB, RPM) if kind != RPM or RPM in kinds}, origin


def newest_by_machine(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the latest verification that counts per kind of machine: GPUs with drivers, or the CPU without GPUs."""
    newest: dict[tuple[Any, ...], Evidence] = {}
    for entry in evidence:
        if entry.counts:
            # The rows are sorted by time, so a later run of the same kind of machine replaces an earlier one.
            newest[entry.verification.cards, entry.verification.cpu if not entry.verification.cards else None] = entry
    return tuple(newest.values())


def created(image: InspectedImage) -> str | None:
    """Return the creation time of the image; None for reproducible images, which have a constant instead."""
    timestamp = image.config.get("created")
    return timestamp if isinstance(timestamp, str) and timestamp != CREATED else None


def _valid(attestation: Attestation) -> bool:
    return attestation.status is Status.VALID


def _refusal(attestation: Attestation, *, trusted: bool) -> str | None:
    name = f"{attestation.kind} {attestation.digest[7:19]}"
    if attestation.status is Status.BROKEN:
        return f"{name} is broken: {attestation.why}"
    # Statements of other kinds, by other tools, may be signed by other keys.
    if not trusted or _valid(attestation) or attestation.kind not in NAMES.values():
        return None
    if attestation.status is Status.UNSIGNED:
        return f"{name} is not signed"
    return f"{name} is signed by another key: {(attestation.keyid or 'unknown')[:16]}"
