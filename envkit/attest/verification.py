"""Where an image was verified and where it never was: its verification records, checked and summarized.

The rest are GPU architectures of its build and ranges of drivers without a passing run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.attest.subject import PLAN_LABEL
from envkit.facts import gpu_code
from envkit.ground.errors import IntegrityError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.versions import is_version, key
from envkit.resolve.gpus import capability
from envkit.verify.record import SCHEMA, seal

if TYPE_CHECKING:
    from envkit.attest.subject import Subject

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PASSED = ("PASS", "WARN")
_EXERCISED, _ABSENT = "exercised", "absent"
NATIVE, MINOR = "native", "minor-compatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU of a machine."""

    name: str
    capability: str | None  # '9.0'
    driver: str | None  # driver version


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The summary of one run of the suite on one machine."""

    verdict: str
    started: str  # RFC 3339, UTC
    tier: str
    suite: str | None  # version of the suite
    suite_sha256: str
    envkit: str  # version of envkit that judged the run
    runner: str
    cards: tuple[Card, ...]
    gpu: str  # 'exercised' | 'absent' | 'not promised'
    cpu: str | None
    counts: Mapping[str, int]
    blames: str | None = None  # of a FAIL: 'image' | 'machine'; None in records before 0.3

    @property
    def failed(self) -> bool:
        """Whether the image failed; a fault of the machine does not count against the image."""
        return self.verdict == "FAIL" and self.blames != "machine"

    @property
    def holds(self) -> bool:
        """Whether the run passed; a GPU image on a machine without a GPU did not."""
        return self.verdict in PASSED and self.gpu != _ABSENT

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "verdict": self.verdict,
            "started": self.started,
            "tier": self.tier,
            "suite": {"version": self.suite, "sha256": self.suite_sha256},
            "envkit": self.envkit,
            "runner": self.runner,
            "gpus": [{"name": card.name, "capability": card.capability, "driver": card.driver} for card in self.cards],
            "gpu": self.gpu,
            "cpu": self.cpu,
            "counts": dict(self.counts),
            "blames": self.blames,
        }


def require_record_of(record: Mapping[str, Any], subject: Subject, where: str) -> None:
    """Check that a record is unchanged and about an image; `where` names the record in errors.

    A record has the digest of the image's manifest or of its configuration, depending on the runner.

    Raises:
        IntegrityError: the record was changed after it was written, or is for another image.
    """
    if record.get("schema") != SCHEMA or not _is_sealed(record):
        raise IntegrityError(f"{where}: the record was changed after it was written")
    claimed = record.get("subject")
    claimed = claimed if isinstance(claimed, Mapping) else {}
    # Of an image name, only the digest at its end counts: the path before it may contain others.
    digests = [*_DIGEST.findall(str(claimed.get("id") or "")), *_DIGEST.findall(str(claimed.get("image") or ""))[-1:]]
    own = {subject.digest, subject.id}
    plan, label = claimed.get("plan"), subject.labels.get(PLAN_LABEL)
    if not digests or not own.issuperset(digests):
        other = ", ".join(dict.fromkeys(digests)) or f"{claimed.get('image')!s:.100}, without a digest"
        raise IntegrityError(
            f"{where}: the record is for another image: {other}",
            hint=f"envkit verify registry:{subject.reference.place}@{subject.digest} -o FILE",
            details=(f"{subject.reference.place} has the manifest {subject.digest}", f"and the image ID {subject.id}"),
        )
    if plan is not None and label is not None and plan != label:
        raise IntegrityError(
            f"{where}: the record was judged with the plan {plan!s:.80}, but the image is from {label}"
        )


def verification_of(record: Mapping[str, Any]) -> Verification:
    """Summarize a record.

    Raises:
        IntegrityError: a field is missing.
    """
    try:
        run, summary, env = record["run"], record["summary"], record["env"]
        host = env.get("host") or {}
        return Verification(
            verdict=str(summary["verdict"]),
            started=str(run["started"]),
            tier=str(run["tier"]),
            suite=None if run["suite_version"] is None else str(run["suite_version"]),
            suite_sha256=str(run["suite_sha256"]),
            envkit=str(record["judge"]["envkit"]),
            runner=str(run["runner"]),
            cards=tuple(_card(row) for row in env.get("gpu") or () if isinstance(row, Mapping)),
            gpu=str(summary["gpu"]),
            cpu=str(host["cpu_model"]) if host.get("cpu_model") else None,
            counts={str(name): int(number) for name, number in summary["counts"].items()},
            blames=None if summary.get("blames") is None else str(summary["blames"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"the record is incomplete: {error!s:.100}") from error


def exercised(verification: Verification) -> tuple[Card, ...]:
    """Return the GPUs on which the image passed."""
    return verification.cards if verification.holds and verification.gpu == _EXERCISED else ()


def _card(row: Mapping[str, Any]) -> Card:
    code, driver = row.get("cc"), row.get("driver")
    return Card(
        name=str(row.get("name") or "a GPU without a name"),
        capability=str(code) if code else None,
        driver=str(driver) if driver else None,
    )


def _is_sealed(record: Mapping[str, Any]) -> bool:
    try:
        return record.get("sha256") == seal(record)
    # NaN, or nested too deeply for the canonical form: such a record was not written by envkit.
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was verified and what was not. Architectures are written as in the image's label: `9.0`."""

    archs: tuple[str, ...]  # all of the build; empty for CPU images
    verified: tuple[str, ...]
    never: tuple[str, ...]
    drivers: Mapping[str, str]  # NATIVE, MINOR -> the range of driver versions
    never_drivers: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "archs": list(self.archs),
            "proved": list(self.verified),
            "never": {"archs": list(self.never), "drivers": list(self.never_drivers)},
            "drivers": dict(self.drivers),
        }


def coverage(labels: Mapping[str, str], cards: Iterable[Card]) -> Coverage:
    """Compare the GPUs and drivers of passing runs with the labels of the image.

    Args:
        labels: the labels of the image.
        cards: the GPUs of the passing runs.
    """
    archs = tuple(labels.get(f"{LABEL_PREFIX}.gpu.archs", "").split())
    native, minimum = (labels.get(f"{LABEL_PREFIX}.driver.{name}", "") for name in ("native", "minimum"))
    tested = list(cards)
    verified = {arch for card in tested if (arch := cubin(archs, card.capability)) is not None}
    drivers = {}
    if is_version(native):
        drivers[NATIVE] = f"{native} or newer"
        if is_version(minimum) and key(minimum) < key(native):
            drivers[MINOR] = f"{minimum} to below {native}"
    # A card without a driver version says nothing about drivers, although its architecture counts.
    modes = {NATIVE if key(card.driver) >= key(native) else MINOR
             for card in tested if is_version(native) and card.driver and is_version(card.driver)}  # fmt: skip
    return Coverage(
        archs=archs,
        verified=tuple(arch for arch in archs if arch in verified),
        never=tuple(arch for arch in archs if arch not in verified),
        drivers=drivers,
        never_drivers=tuple(name for name in drivers if name not in modes),
    )


def cubin(archs: Iterable[str], card: str | None) -> str | None:
    """Return the architecture whose code a GPU runs; None if the build has no such code, so that the GPU needs PTX."""
    own = None if card is None else gpu_code.parse(capability(card) or "")
    if own is None:
        return None
    by_code = {code: arch for arch in archs if (code := gpu_code.parse(capability(arch) or "")) is not None}
    found = gpu_code.serving(own[:2], by_code, gpu_code.row_of(own[:2]))
    return None if found is None else by_code[found]
