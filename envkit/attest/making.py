"""Create, sign and attach the attestations of one image: contents, provenance and verification records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.attest import dsse, sbom
from envkit.attest.access import Access
from envkit.attest.attached import Attestation, Status, artifact, read_attached
from envkit.attest.content import json_of
from envkit.attest.keys import PrivateKey
from envkit.attest.packages import with_lock
from envkit.attest.provenance import provenance
from envkit.attest.statement import NAMES, PROVENANCE, SBOM, VERIFY, state
from envkit.attest.subject import LOCK_LABEL, PLAN_LABEL
from envkit.attest.verification import require_record_of
from envkit.facts.load import load
from envkit.ground.errors import EngineError, IntegrityError, LockError, UsageError
from envkit.image import packages as reading
from envkit.lock.reading import lock_from_json
from envkit.lock.store import digest_of, read_lock
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
    """What is said of the image besides what it shows itself; None = the image or this machine has it."""

    records: tuple[tuple[str, Mapping[str, Any]], ...]  # each with the name of its file, for errors
    plan: BuildPlan | None = None
    lock: Lock | None = None
    state: Path | None = None  # where builds of this machine keep plans and locks


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One attestation and what became of it."""

    kind: str  # 'sbom' | 'provenance' | 'verify'
    digest: str  # of its manifest
    new: bool  # False: the very same was there already
    listed_by: str  # 'registry' | 'tag' | '' where it was there already


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an image was given."""

    made: tuple[Made, ...]
    packages: Mapping[str, int]  # by kind
    locked: bool
    absent: tuple[str, ...]  # what the lock names and the image lacks
    rpm: bool  # there are RPM packages that the bill does not list


def attest(
    subject: Subject,
    registry: Registry,
    sources: Sources,
    key: PrivateKey | Keyless | None,
    reporter: Reporter,
    *,
    ca_bundle: str | None = None,
) -> Result:
    """Make the attestations of an image and attach them.

    Args:
        subject: the image.
        registry: where it is.
        sources: records, plan and lock.
        key: signs, itself or by way of sigstore; None leaves everything unsigned.
        reporter: hears the steps.
        ca_bundle: PEM file of authorities to trust when layers are fetched.

    Raises:
        IntegrityError: a record, plan or lock is of another image, or the registry's bytes are not what they should be.
        UsageError: the plan is nowhere to be found.
        LockError: the lock is nowhere to be found.
        EngineError: the registry refuses.
        EnvironmentProblem: it cannot be reached, or a library is missing.
    """
    sbom.require()
    for name, record in sources.records:
        require_record_of(record, subject, name)
        require_consistent(record, name)
    where = f"registry:{subject.reference.place}@{subject.digest}"
    opened = Access(ca_bundle=ca_bundle, reporter=reporter).open(where)
    if opened is None or opened.id != subject.id:
        raise EngineError(f"{where} cannot be read", hint="check the image's name")
    contents = reading.look(opened, reporter)
    plan = _plan(subject, sources, contents)
    lock = _lock(subject, sources, contents)
    packages, absent = (contents.packages, ()) if lock is None else with_lock(contents.packages, lock)
    bill = sbom.bill(subject, packages, system=contents.system, absent=absent, rpm=contents.rpm)
    facts = load()
    collected = facts.collected if facts.digest == plan.facts_digest else None
    said: list[tuple[str, Mapping[str, Any]]] = [
        (SBOM, bill),
        (PROVENANCE, provenance(subject, plan, lock, collected=collected)),
        *((VERIFY, record) for _, record in sources.records),
    ]
    reporter.step(f"attach {len(said)} attestations to {subject.reference.place}")
    made = _attach_all(subject, registry, said, key)
    return Result(made=made, packages=sbom.counts(bill), locked=lock is not None, absent=absent, rpm=contents.rpm)


def _attach_all(
    subject: Subject,
    registry: Registry,
    said: Sequence[tuple[str, Mapping[str, Any]]],
    key: PrivateKey | Keyless | None,
) -> tuple[Made, ...]:
    """Sign and attach; what says the same and is signed by the same key is not attached again."""
    if isinstance(key, PrivateKey):
        before = read_attached(subject, registry, [key.public]).attestations
    else:
        before = read_attached(subject, registry, [], [] if key is None else [key.identity]).attestations
    made = []
    for predicate_type, predicate in said:
        payload = state(subject, predicate_type, predicate)
        same = _same(before, payload, key)
        if same is not None:
            made.append(Made(kind=NAMES[predicate_type], digest=same.digest, new=False, listed_by=""))
            continue
        done = attach(registry, subject.reference, subject.descriptor, _sealed(payload, predicate_type, key))
        made.append(Made(kind=NAMES[predicate_type], digest=done.digest, new=done.new, listed_by=done.listed_by))
    return tuple(made)


def _same(before: Sequence[Attestation], payload: bytes, key: PrivateKey | Keyless | None) -> Attestation | None:
    wanted = Status.UNSIGNED if key is None else Status.VALID
    return next(
        (attestation for attestation in before if attestation.status is wanted and attestation.payload == payload), None
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
            f"{subject.reference.place}@{subject.digest} has no label with its plan",
            hint="envkit attest supports only images built by envkit",
        )
    plan = sources.plan
    if plan is None and contents.plan is not None:
        plan = plan_from_json(json_of(contents.plan, "the plan in the image"), "the plan in the image")
    if plan is None and sources.state is not None:
        plan = load_plan(sources.state, label)
    if plan is None:
        raise UsageError(
            f"the image contains no plan, and this machine has not kept {label}",
            hint="envkit attest IMAGE --record FILE --plan plan.json",
        )
    if plan.digest != label:
        raise IntegrityError(
            f"the plan is {plan.digest}, but the image was built from {label}",
            hint="use --plan with the plan of the image: envkit render --only plan",
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
        kept = sources.state / "locks" / f"{label.removeprefix('sha256:')}.json"
        lock = read_lock(kept) if kept.parent.name == "locks" and kept.is_file() else None
    if lock is None:
        raise LockError(
            f"the image contains no lock, and this machine has not kept {label}",
            hint="envkit attest IMAGE --record FILE --lock envkit.lock",
        )
    if digest_of(lock) != label:
        raise IntegrityError(
            f"the lock is {digest_of(lock)}, but the image was built from {label}",
            hint="use --lock with the lock of the image",
        )
    return lock
