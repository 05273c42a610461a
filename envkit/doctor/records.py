"""Diagnose a verify record (`envkit.verify/1`): its failed checks, and five symptoms that GPU monitors show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envkit.doctor import symptoms
from envkit.doctor.environment import of_environment
from envkit.doctor.model import Diagnosis, Evidence, Finding, Section, Severity, by_weight
from envkit.doctor.trees import items, mapping
from envkit.ground import trees
from envkit.ground.errors import UsageError
from envkit.knowledge import matching
from envkit.knowledge.failures import Row, rows
from envkit.verify.record import MAX_FILE, SCHEMA

_SEVERITIES = {"FAIL": Severity.ERROR, "ERROR": Severity.ERROR, "WARN": Severity.WARN, "INCONCLUSIVE": Severity.WARN}
# Reasons that are not errors, whatever the verdict.
_NOTES = frozenset({"NO_GPU", "NO_PLAN", "NOTHING_EXECUTED", "PARTIAL", "INCONCLUSIVE"})
_MEASURE = "envkit verify IMAGE --tier standard --only C23 -o record.json"


def read_record(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        UsageError: the file does not exist, or is not a verify record.
    """
    tree = trees.from_json_file(path, MAX_FILE, hint="envkit verify IMAGE -o record.json")
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        schema = tree.get("schema") if isinstance(tree, dict) else None
        raise UsageError(f"{path} is not a verify record ({SCHEMA}): its schema is {schema!r:.80}",
                         hint="envkit verify IMAGE -o record.json")  # fmt: skip
    return tree


def diagnose_record(record: Mapping[str, Any], name: str) -> Diagnosis:
    """Diagnose a record; the exit code is always 0, because the record has its own verdict."""
    checks = [check for check in items(record.get("checks")) if isinstance(check, dict)]
    summary = mapping(record.get("summary"))
    reasons = tuple(_reasons(summary))
    # After an aborted run, missing checks are expected and not worth a finding each.
    if any(reason.severity is Severity.ERROR for reason in reasons):
        checks = [check for check in checks if check.get("reason_code") != "NOT_OBSERVED"]
    findings = by_weight((*reasons, *_findings(checks), *_variables(record, checks)))
    facts = (
        ("verdict", str(summary.get("verdict", "unknown"))),
        ("image", str(mapping(record.get("subject")).get("image", "unknown"))),
        ("started", str(mapping(record.get("run")).get("started", "unknown"))),
        ("checks", str(len(checks))),
    )
    five = _five(checks, record)
    sections = (
        Section(id="checks", title="Checks", facts=facts, findings=findings),
        Section(id="symptoms", title="Five symptoms, answered from C23", findings=five),
    )
    wrong = [finding for finding in findings if finding.severity is not Severity.INFO]
    worst = wrong[0].title if wrong else "all checks of the record passed or were skipped"
    return Diagnosis(subject="record", name=name, sections=sections, exit_code=0, conclusion=worst)


def _reasons(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the run as a whole."""
    broken = str(summary.get("verdict")) in ("FAIL", "ERROR")
    for reason in map(mapping, items(summary.get("reasons"))):
        code = str(reason.get("code") or "UNKNOWN")
        advice = reason.get("advice")
        yield Finding(
            id=code.lower().replace("_", "-"),
            severity=Severity.ERROR if broken and code not in _NOTES else Severity.INFO,
            title=str(reason.get("message") or code),
            fix=(str(advice),) if advice else (),
        )


def _findings(checks: list[dict[str, Any]]) -> Iterator[Finding]:
    known = {code: row for row in rows() for code in row.codes}
    # Failures first, then checks without a result.
    for check in sorted(checks, key=lambda entry: entry.get("verdict") == "INCONCLUSIVE"):
        severity = _SEVERITIES.get(str(check.get("verdict")))
        if severity is None:
            continue
        code = str(check.get("reason_code") or "UNKNOWN")
        message = str(check.get("message") or code)
        # The check does not count towards the verdict.
        if severity is Severity.ERROR and check.get("gates") is False:
            severity = Severity.WARN
        observed = mapping(check.get("observed"))
        error = "\n".join(str(observed[name]) for name in ("error", "text") if isinstance(observed.get(name), str))
        # What the error says is more exact than the reason code, which several rows may have.
        row = next(iter(matching.shown(f"{message}\n{error}")), None) or known.get(code)
        evidence = Evidence(text=f"{check.get('id')} ({check.get('subject')}): {check.get('verdict')} {code}")
        advice = tuple(str(line) for line in items(check.get("advice")))
        yield Finding(
            id=code.lower().replace("_", "-"),
            severity=severity,
            title=message,
            evidence=(evidence,),
            fix=advice or (row.fix if row else ()),
            **_from(row),
        )


def _variables(record: Mapping[str, Any], checks: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield the variables of the run that no check names."""
    env = mapping(record.get("env"))
    flags = {name: value for name, value in mapping(env.get("flags")).items() if isinstance(value, str)}
    said = "\n".join(str(check.get("message")) for check in checks)
    for finding in of_environment(flags, gpu=bool(items(env.get("gpu")))):
        if finding.evidence[0].text.partition("=")[0] not in said:
            yield replace(finding, severity=Severity.WARN)


def _from(row: Row | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {"cause": row.cause, "check": row.check, "distinguish": row.distinguish, "sources": row.sources}


def _five(checks: list[dict[str, Any]], record: Mapping[str, Any]) -> tuple[Finding, ...]:
    training = next((check for check in checks if str(check.get("id")) == "C23.training"), None)
    step = symptoms.read_step(mapping(training.get("observed")), record) if training else None
    if training is None or step is None:
        other = next((check for check in checks if str(check.get("id")).startswith("C23")), None)
        why = f": {other.get('message')}" if other else ""
        return (
            Finding(
                id="not-measured",
                severity=Severity.INFO,
                title=f"the record has no timings of C23{why}",
                cause="Without them, utilization, scaling and busy CPUs cannot be explained.",
                fix=(_MEASURE,),
            ),
        )
    busy = str(mapping(training.get("noise")).get("gate", "clean")) != "clean"
    note = (
        Finding(
            id="measured-while-busy",
            severity=Severity.WARN,
            title="the machine was busy while C23 ran, so the shares below may be inaccurate",
            fix=(_MEASURE,),
        ),
    )
    return ((*note,) if busy else ()) + symptoms.answers(step)
