"""The parts of a diagnosis: findings with evidence and fixes, in sections, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from envkit.knowledge.failures import Severity as Severity  # noqa: PLC0414 - that of a row

SCHEMA = "envkit.doctor/1"


class Verdict(StrEnum):
    """What a log says of its job."""

    NAMED = "named"  # it failed, and a row names the cause
    UNKNOWN = "unknown"  # it failed, and no row names the cause
    CLEAR = "clear"  # the log says that it ended well, or that it runs
    OPEN = "open"  # no sign of failure, and the log does not say how it ended


RANK = (Severity.ERROR, Severity.WARN, Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A text that shows a finding, with its line number (from 1) if it is from a log or a file."""

    text: str
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {"line": self.line, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or a note.

    `consequences` are the titles of the failures that it explains; `blocks` means that some commands cannot work.
    """

    id: str  # kebab-case, stable
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    check: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    distinguish: str = ""
    sources: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    times: int = 1
    blocks: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "id": self.id,
            "severity": str(self.severity),
            "title": self.title,
            "evidence": [evidence.to_json() for evidence in self.evidence],
            "times": self.times,
            "cause": self.cause,
            "check": list(self.check),
            "fix": list(self.fix),
            "distinguish": self.distinguish,
            "sources": list(self.sources),
            "consequences": list(self.consequences),
            "blocks": self.blocks,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a diagnosis: facts as rows of name and value, and findings."""

    id: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "id": self.id,
            "title": self.title,
            "facts": [{"name": name, "value": value} for name, value in self.facts],
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of `envkit doctor`. `subject` is what was diagnosed: host, log, image, record or file."""

    subject: str
    name: str
    sections: tuple[Section, ...]
    exit_code: int
    conclusion: str
    verdict: Verdict | None = None  # of a log

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all sections, in order."""
        return tuple(finding for section in self.sections for finding in section.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the document `envkit.doctor/1`."""
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "name": self.name,
            "exit_code": self.exit_code,
            "conclusion": self.conclusion,
            "verdict": None if self.verdict is None else str(self.verdict),
            "counts": counts(self.findings),
            "sections": [section.to_json() for section in self.sections],
        }


def counts(findings: Iterable[Finding]) -> Mapping[str, int]:
    """Return the number of findings per severity."""
    severities = [finding.severity for finding in findings]
    return {str(kind): severities.count(kind) for kind in RANK}


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, most severe first; the order within a severity stays."""
    return tuple(sorted(findings, key=lambda finding: RANK.index(finding.severity)))
