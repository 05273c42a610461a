"""The two sides of a comparison: recorded launches, and what must be equal so that they can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import UsageError
from envkit.verify.again import read_record
from envkit.verify.compare.metrics import body_factor, readings
from envkit.verify.judge import check_of
from envkit.verify.record import flags_that_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envkit.verify.compare.decide import Launch

_ONE_MACHINE = "compare records of one machine, made with the same tier, options and version of envkit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its name and the records of its launches, oldest first."""

    name: str
    records: tuple[Mapping[str, Any], ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The metrics of every launch."""
        return tuple(readings(record) for record in self.records)


def read_side(path: Path) -> Side:
    """Read one side from a record file, or from a folder of records; each record is one launch.

    Raises:
        UsageError: there is no record, a file is not a record, or a record is of a failed or slowed run.
        IntegrityError: a record was changed after it was written.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no record (*.json) in this folder", hint="envkit verify IMAGE -o FOLDER/1.json")
    records = [read_record(file) for file in files]
    for file, record in zip(files, records, strict=True):
        fault = unfit(record)
        if fault:
            raise UsageError(f"{file}: {fault}", hint="leave this record out")
    seen: dict[str, Path] = {}
    for file, record in zip(files, records, strict=True):
        run = str(record["run"].get("id"))
        if run in seen:
            raise UsageError(f"{file} and {seen[run]} are the same launch", hint="leave one of them out")
        seen[run] = file
    return Side(name=str(path), records=tuple(sorted(records, key=lambda record: str(record["run"]["started"]))))


def unfit(record: Mapping[str, Any]) -> str | None:
    """Return why a record cannot be compared, None if it can."""
    trouble = record["run"]["trouble"]
    if trouble is not None:
        return f"the run failed: {trouble['reason']['message']}"
    factor = body_factor(record)
    if factor != 1:
        return f"the self-test repeated its timed work {factor:g} times on purpose"
    return None


def disagreements(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the reasons why launches cannot be compared: different machines, or different ways of measuring."""
    prints = [record["env"]["fingerprint"] for record in records]
    reasons = []
    if len({item["hw"] for item in prints}) > 1 or any(item["hw"] is None for item in prints):
        reasons.append(f"different machines: {_differing(records, _machine)}")
    if len({item["policy"] for item in prints}) > 1:
        reasons.append(f"measured differently: {_differing(records, _policy)}")
    return tuple(reasons)


def gaps(first: Side, second: Side) -> tuple[str, ...]:
    """Return a note for each metric that only one side measured, with the verdict of its check on the other side."""
    sentences: dict[str, None] = {}
    for side, other in ((first, second), (second, first)):
        own = {key for launch in side.launches for key in launch}
        for key in sorted({key for launch in other.launches for key in launch} - own):
            name = key.partition("@")[0]
            sentences[f"{side.name} measured no {name}: {_outcome(side.records[-1], name)}"] = None
    return tuple(sentences)


def _outcome(record: Mapping[str, Any], name: str) -> str:
    """Return the outcome of an observation, or of its whole check if that ended early."""
    # Reversed, so that an ID that several subjects have keeps its first row.
    rows = {str(check["id"]): check for check in reversed(record["checks"])}
    row = rows.get(name) or rows.get(check_of(name))
    if row is None:
        return "its record does not contain the check"
    code = f" {row['reason_code']}" if row["reason_code"] else ""
    return f"{row['id']} is {row['verdict']}{code}, {row['message']}"


def hold_together(records: Sequence[Mapping[str, Any]]) -> None:
    """Check that all launches are of one machine and measured alike.

    Raises:
        UsageError: they are not; the details list all reasons.
    """
    reasons = disagreements(records)
    if reasons:
        raise UsageError(f"these launches cannot be compared: {reasons[0]}", hint=_ONE_MACHINE, details=reasons[1:])


def _machine(record: Mapping[str, Any]) -> dict[str, Any]:
    host, gpus = record["env"]["host"], record["env"]["gpu"]
    links = [gpu.get("link") if isinstance(gpu.get("link"), dict) else {} for gpu in gpus]
    return {
        "processor": host.get("cpu_model"),
        "usable CPUs": host.get("effective"),
        "GPUs": [f"{gpu.get('name')} {gpu.get('cc')}" for gpu in gpus],
        "link": [f"{link.get('gen_max')} x{link.get('width_max')}" for link in links],
    }


def _policy(record: Mapping[str, Any]) -> dict[str, Any]:
    run = record["run"]
    launch = dict(run["launch"] or {})
    launch.pop("body_factor", None)  # `unfit` refuses slowed launches with its own message
    return {
        **flags_that_count(record["env"]["flags"]),
        "tier": run["tier"],
        "suite": str(run["suite_sha256"])[:12],
        "launch": launch or None,
    }


def _differing(records: Sequence[Mapping[str, Any]], look: Any) -> str:
    seen = [look(record) for record in records]
    names = list(dict.fromkeys(name for item in seen for name in item))
    parts = []
    for name in names:
        values = list(dict.fromkeys(str(item.get(name)) for item in seen))
        if len(values) > 1:
            parts.append(f"{name} {' vs '.join(values[:3])}")
    return "; ".join(parts) or "the records do not show how"
