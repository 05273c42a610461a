"""Judge a record again, from nothing but the record: its observations, its spec and its thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.catalog import CheckEntry, judges
from envkit.ground import trees
from envkit.ground.errors import IntegrityError, UsageError
from envkit.verify.baseline import CHECK as BASELINE_CHECK
from envkit.verify.baseline import held_to
from envkit.verify.driver import absent_because
from envkit.verify.exitcode import Trouble, summarize
from envkit.verify.judge import Judged, check_of, judge, not_selected
from envkit.verify.launch import failed_again, launched_again, skipped_again
from envkit.verify.normalize import normalized
from envkit.verify.payload import observation_fault
from envkit.verify.record import MAX_FILE, SCHEMA, Record, fingerprint, judged_record, rules_digest, seal, spec_digest
from envkit.verify.static import Promise, static_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from envkit.checks.thresholds import Thresholds

_NEW_RECORD = "envkit verify IMAGE -o FILE  # writes a new record"
_UNCHANGED = "use the record as envkit verify wrote it"
_FIELDS = {"run": dict, "subject": dict, "env": dict, "checks": list, "summary": dict, "judge": dict, "sha256": str}
_LAUNCHES = ("S05", "S06")


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A record judged again. `changed` lists each difference; `same_rules`: the same code judged it before."""

    record: Record
    changed: tuple[str, ...]
    same_rules: bool
    judged_by: str  # the version of envkit that made the record


def read_record(path: Path) -> dict[str, Any]:
    """Return the record in a file, complete and unchanged since it was written.

    Raises:
        UsageError: the file does not exist, is not a record, or has another schema.
        IntegrityError: the record was changed after it was written.
    """
    tree = trees.from_json_file(path, MAX_FILE, hint=_NEW_RECORD)
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"{path}: schema is {schema!r:.80}, not {SCHEMA!r}", hint=_NEW_RECORD)
    lacking = [name for name, kind in _FIELDS.items() if not isinstance(tree.get(name), kind)]
    if lacking:
        message = f"{path}: the record has no usable {', '.join(lacking)}, so its verdict cannot be recomputed"
        raise UsageError(message, hint=_NEW_RECORD)
    if seal(tree) != tree["sha256"]:
        message = f"{path}: the record was changed after it was written: its digest is {seal(tree)[:12]}…, not "
        raise IntegrityError(f"{message}{tree['sha256']:.12}…", hint=_UNCHANGED)
    return dict(tree)


def judge_again(tree: Mapping[str, Any], table: Thresholds | None = None) -> Again:
    """Judge the record `tree` with its own thresholds, or with those of `table`.

    Raises:
        UsageError: a part that the judgment needs is missing or has another type.
        IntegrityError: the spec or the fingerprint was changed, or the same rules and thresholds give other verdicts
            than the record has.
    """
    own = thresholds.of_record(tree["judge"].get("thresholds"))
    with thresholds.using(table or own):
        try:
            judged, summary = _judged(tree)
            record = judged_record(tree, judged, summary)
            changed = tuple(_changes(tree, record.tree))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the record cannot be judged again: {error!r:.200}", hint=_NEW_RECORD) from error
    same_rules = tree["judge"].get("rules_sha256") == rules_digest()
    # Other rules or thresholds may give other verdicts; the record's own may not.
    if changed and same_rules and (table is None or table == own):
        raise IntegrityError(
            "the record contradicts itself: its rules and thresholds do not give its verdicts",
            hint=_UNCHANGED,
            details=changed,
        )
    return Again(
        record=record, changed=changed, same_rules=same_rules, judged_by=str(tree["judge"].get("envkit", "unknown"))
    )


def require_consistent(tree: Mapping[str, Any], what: str) -> None:
    """Check that a record's observations give its verdict. Its digest is not enough: an editor can recompute it.

    If the record was made by other rules, those of this version decide.

    Args:
        tree: the record.
        what: its file, for messages.

    Raises:
        IntegrityError: the observations give another verdict.
        UsageError: a part that the judgment needs is missing or has another type.
    """
    try:
        again = judge_again(tree)
    except IntegrityError as error:
        raise IntegrityError(f"{what}: {error.message}", hint=error.hint, details=error.details) from error
    recorded, computed = (
        (summary.get("verdict"), summary.get("exit_code"))
        for summary in (tree["summary"], again.record.tree["summary"])
    )
    if recorded != computed:
        raise IntegrityError(
            f"{what}: the record says {recorded[0]} (exit code {recorded[1]}), but by the rules of this version its "
            f"observations give {computed[0]} (exit code {computed[1]}); the record is from envkit {again.judged_by}",
            hint="envkit verify IMAGE   # writes a record by these rules",
            details=again.changed,
        )


def _judged(tree: Mapping[str, Any]) -> tuple[tuple[Judged, ...], Any]:
    run, checks = tree["run"], tree["checks"]
    spec = {key: value for key, value in tree["subject"]["spec"].items() if key != "sha256"}
    if spec_digest(spec) != tree["subject"]["spec"]["sha256"]:
        raise IntegrityError("the record's spec was changed: its digest does not match")
    # Findings without a status have no observation (NOT_OBSERVED, NOT_SELECTED); `judge` makes them again.
    observed = [item for item in checks if item["id"].startswith("C") and item["status"] is not None]
    for index, item in enumerate(checks):
        fault = observation_fault(item) if item in observed else None
        if fault is not None:
            raise UsageError(f"checks[{index}] of the record: {fault}", hint=_NEW_RECORD)
    # A record has a suite version only if the payload returned a document.
    document = None if run["suite_version"] is None else normalized({"env": tree["env"], "checks": observed})
    _hold_fingerprint(tree, document)
    trouble = None if run["trouble"] is None else Trouble.from_json(run["trouble"])
    missed = [item for item in checks if item["reason_code"] == "NOT_SELECTED"]
    # Reversed, so that the title of a check's first row wins.
    titles = {check_of(item["id"]): item["title"] for item in reversed(checks)}
    selected = _entries(run["selected"], titles)
    left_out = _entries((item["id"] for item in missed), {item["id"]: item["title"] for item in missed})
    judged = (
        *_image_checks(tree, spec),
        *judge(
            document,
            spec,
            selected,
            judges(),
            absent=absent_because(trouble if document is None else None),
            trust_timing=run["timing_trusted"] is True,
            missing=(run.get("isolation") or {}).get("missing", ()),  # records before 0.3 have no isolation
        ),
        *not_selected(left_out, selected),
    )
    judged = (*judged, *held_to(judged, tree["baseline"]))
    return judged, summarize(judged, spec, trouble=trouble)


def _hold_fingerprint(tree: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
    env = document["env"] if document is not None else {}
    run = tree["run"]
    data = tree["subject"]["spec"].get("data")
    computed = fingerprint(env, tier=run["tier"], suite_sha256=run["suite_sha256"], launch=run["launch"], data=data)
    if computed != tree["env"]["fingerprint"]:
        raise IntegrityError(f"the record's fingerprint does not match its machine, which gives {computed}")


def _entries(ids: Iterable[str], titles: Mapping[str, str]) -> tuple[CheckEntry, ...]:
    # Judging uses only the ID and the title, so the other fields have any valid value.
    return tuple(CheckEntry(str(check), str(titles.get(check, check)), "quick", 0.0, "host") for check in ids)


def _image_checks(tree: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterable[Judged]:
    """Yield S00 to S06, judged from their observations."""
    promised = tree["subject"]["promise"]
    promise = None if promised is None else Promise.from_json(promised)
    for item in tree["checks"]:
        if not item["id"].startswith("S") or check_of(item["id"]) == BASELINE_CHECK:
            continue
        reason = item["reason"] or {}
        if item["id"] not in _LAUNCHES:
            yield static_again(item["id"], item["observed"], promise)
        elif item["status"] == "skip":
            yield skipped_again(item["id"], item["title"], reason["code"], reason["message"])
        elif item["status"] == "error":
            yield failed_again(item["id"], item["title"], reason["message"], item["observed"]["hint"])
        else:
            yield launched_again(item["id"], item["title"], item["observed"], spec["prefix"], item["duration_s"])


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    before = {(item["id"], item["subject"]): item for item in old["checks"]}
    after = {(item["id"], item["subject"]): item for item in new["checks"]}
    for key in dict.fromkeys((*before, *after)):
        first, now = before.get(key), after.get(key)
        names = ("verdict", "reason_code", "gates", "metric", "message")
        differing = [name for name in names if (first or {}).get(name) != (now or {}).get(name)]
        if differing:
            name = differing[0]
            values = " -> ".join("absent" if row is None else str(row[name]) for row in (first, now))
            yield f"{key[0]} on {key[1]}: {name} {values}"
    for name in ("verdict", "exit_code", "counts", "diagnosis", "gpu"):
        if old["summary"].get(name) != new["summary"][name]:
            yield f"the image: {name} {old['summary'].get(name)} -> {new['summary'][name]}"
