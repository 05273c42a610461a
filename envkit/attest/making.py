"""Create, sign and attach the attestations of an image: SBOM, provenance and verification records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from envkit.attest import dsse, sbom
from envkit.attest.access import Access
from envkit.attest.attached import Attestation, Status, artifact, read_attached
from envkit.attest.content import json_of
from envkit.attest.keys import PrivateKey
from envkit.attest.packages import with_lock
from envkit.attest.provenance import provenance
from envkit.attest.statement import NAMES, PROVENANCE, SBOM, VERIFY, statement_bytes
from envkit.attest.subject import LOCK_LABEL, PLAN_LABEL
from envkit.attest.verification import require_record_of
from envkit.facts.load import load
from envkit.ground.errors import EngineError, IntegrityError, LockError, UsageError
from envkit.image import packages as reading
from envkit.image.name import InRegistry
from envkit.lock.reading import lock_from_json
from envkit.lock.store import digest_of, load_lock
from envkit.plan.store import load_plan, plan_from_json
from envkit.registry.referrers import attach
from envkit.verify.again import require_consistent

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.attest.keyless import Keyless
    from envkit.attest.subject import Subject
    from envkit.ground.progress import Reporter
    from envkit.image.packages import ScanResult
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan
    from envkit.registry.referrers import Artifact
    from envkit.registry.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The records to attach, and where to get plan and lock."""

    records: tuple[tuple[str, Mapping[str, Any]], ...]  # each with the name of its file, for errors
    plan: BuildPlan | None = None  # None: from the image or from `state`
    lock: Lock | None = None  # None: from the image or from `state`
    state: Path | None = None  # folder where builds of this machine keep plans and locks


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An attestation of the image, new or already attached."""

    kind: str  # 'sbom' | 'provenance' | 'verify'
    digest: str  # of its manifest
    new: bool  # False: an equal one was already attached
    listed_by: str  # 'registry' | 'tag'; empty if it was already attached


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The attestations of an image, and what its SBOM contains."""

    made: tuple[Made, ...]
    packages: Mapping[str, int]  # number by kind
    locked: bool
    absent: tuple[str, ...]  # packages of the lock that are not in the image
    rpm: bool  # there are RPM packages that the SBOM does not list


def attest(
    subject: Subject,
    registry: Registry,
    sources: Sources,
    key: PrivateKey | Keyless | None,
    reporter: Reporter,
    *,
    ca_bundle: str | None = None,
) -> Result:
    """Create the attestations of an image and attach them.

    Args:
        subject: the image.
        registry: the registry of the image.
        sources: records, plan and lock.
        key: signs the statements, with a key or through sigstore; None leaves them unsigned.
        reporter: receives progress.
        ca_bundle: PEM file of authorities to trust when layers are downloaded.

    Raises:
        IntegrityError: a record, plan or lock is for another image, or the registry's data does not match its digest.
        UsageError: the plan was not found.
        LockError: the lock was not found.
        EngineError: the registry refuses.
        EnvironmentProblem: the registry is unreachable, or a library is missing.
    """
    sbom.require()
    # Before any layer is downloaded, because these checks are cheap.
    for name, record in sources.records:
        require_record_of(record, subject, name)
        require_consistent(record, name)
    image = InRegistry(reference=replace(subject.reference, tag=None))
    opened = Access(ca_bundle=ca_bundle, reporter=reporter).open(image)
    # The image was opened a second time. Its documents have to be those that the statements will be about.
    if opened is None or opened.id != subject.id:
        raise EngineError(f"{image} cannot be read", hint="check the image's name")
    contents = reading.look(opened, reporter)
    plan = _plan(subject, sources, contents)
    lock = _lock(subject, sources, contents)
    packages, absent = (contents.packages, ()) if lock is None else with_lock(contents.packages, lock)
    bill = sbom.bill(subject, packages, system=contents.system, absent=absent, rpm=contents.rpm)
    facts = load()
    collected = facts.collected if facts.digest == plan.facts_digest else None
    predicates: list[tuple[str, Mapping[str, Any]]] = [
        (SBOM, bill),
        (PROVENANCE, provenance(subject, plan, lock, collected=collected)),
        *((VERIFY, record) for _, record in sources.records),
    ]
    reporter.step(f"attach {len(predicates)} attestations to {subject.reference.place}")
    made = _attach_all(subject, registry, predicates, key)
    return Result(made=made, packages=sbom.counts(bill), locked=lock is not None, absent=absent, rpm=contents.rpm)


def _attach_all(
    subject: Subject,
    registry: Registry,
    predicates: Sequence[tuple[str, Mapping[str, Any]]],
    key: PrivateKey | Keyless | None,
) -> tuple[Made, ...]:
    """Sign and attach; an equal statement with the same signer is not attached again."""
    if isinstance(key, PrivateKey):
        existing = read_attached(subject, registry, [key.public]).attestations
    else:
        existing = read_attached(subject, registry, [], [] if key is None else [key.identity]).attestations
    made = []
    for predicate_type, predicate in predicates:
        payload = statement_bytes(subject, predicate_type, predicate)
        same = _same(existing, payload, key)
        if same is not None:
            made.append(Made(kind=NAMES[predicate_type], digest=same.digest, new=False, listed_by=""))
            continue
        done = attach(registry, subject.reference, subject.descriptor, _sealed(payload, predicate_type, key))
        made.append(Made(kind=NAMES[predicate_type], digest=done.digest, new=done.new, listed_by=done.listed_by))
    return tuple(made)


def _same(existing: Sequence[Attestation], payload: bytes, key: PrivateKey | Keyless | None) -> Attestation | None:
    status = Status.UNSIGNED if key is None else Status.VALID
    return next(
        (attestation for attestation in existing if attestation.status is status and attestation.payload == payload),
        None,
    )


def _sealed(payload: bytes, predicate_type: str, key: PrivateKey | Keyless | None) -> Artifact:
    if key is None:
        return artifact(payload, predicate_type, None)
    if isinstance(key, PrivateKey):
        return artifact(payload, predicate_type, dsse.seal(payload, key))
    return artifact(payload, predicate_type, key.seal(payload), key.media_type)


def _plan(subject: Subject, sources: Sources, contents: ScanResult) -> BuildPlan:
    label = subject.labels.get(PLAN_LABEL)
    if label is None:
        raise UsageError(
            f"{subject.reference.place}@{subject.digest} has no plan label",
            hint="envkit attest supports only images built by envkit",
        )
    plan = sources.plan
    if plan is None and contents.plan is not None:
        plan = plan_from_json(json_of(contents.plan, "the plan in the image"), "the plan in the image")
    if plan is None and sources.state is not None:
        plan = load_plan(sources.state, label)
    if plan is None:
        raise UsageError(
            f"plan {label} is neither in the image nor on this machine",
            hint="envkit attest IMAGE --record FILE --plan plan.json",
        )
    if plan.digest != label:
        raise IntegrityError(
            f"the plan is {plan.digest}, but the image was built from {label}",
            hint="pass the plan of the image with --plan; envkit render --only plan writes it",
        )
    return plan


def _lock(subject: Subject, sources: Sources, contents: ScanResult) -> Lock | None:
    label, lock = subject.labels.get(LOCK_LABEL), sources.lock
    if label is None:
        if lock is not None:
            raise IntegrityError(
                "--lock is given, but the image has no lock label",
                hint="remove --lock: the SBOM then lists the packages found in the image",
            )
        return None
    if lock is None and contents.lock is not None:
        lock = lock_from_json(json_of(contents.lock, "the lock in the image"), "the lock in the image")
    if lock is None and sources.state is not None:
        lock = load_lock(sources.state, label)
    if lock is None:
        raise LockError(
            f"lock {label} is neither in the image nor on this machine",
            hint="envkit attest IMAGE --record FILE --lock envkit.lock",
        )
    if digest_of(lock) != label:
        raise IntegrityError(
            f"the lock is {digest_of(lock)}, but the image was built from {label}",
            hint="pass the lock of the image with --lock",
        )
    return lock
