"""The parts of a diagnosis: findings with evidence and fixes, in sections, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SCHEMA = "envkit.doctor/1"


class Severity(StrEnum):
    """How much a finding matters; the words are those of the facts' traps."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"


RANK = (Severity.ERROR, Severity.WARN, Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where something was seen: the text, and the line's number from 1 where it comes from a log."""

    text: str
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {"line": self.line, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or worth knowing.

    `consequences` are the titles of what this explains, `blocks` says that envkit itself cannot work because of it.
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
        """A JSON-ready tree."""
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
    """One part of a diagnosis: what was found out, and what is to be said about it."""

    id: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {
            "id": self.id,
            "title": self.title,
            "facts": [{"name": name, "value": value} for name, value in self.facts],
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A whole answer. `subject` is what was looked at: host, log, image, record or file."""

    subject: str
    name: str
    sections: tuple[Section, ...]
    exit_code: int
    conclusion: str

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, section after section."""
        return tuple(finding for section in self.sections for finding in section.findings)

    def to_json(self) -> dict[str, Any]:
        """The document `envkit.doctor/1`."""
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "name": self.name,
            "exit_code": self.exit_code,
            "conclusion": self.conclusion,
            "counts": counts(self.findings),
            "sections": [section.to_json() for section in self.sections],
        }


def counts(findings: Iterable[Finding]) -> Mapping[str, int]:
    """How many findings there are of each severity."""
    all_findings = list(findings)
    return {str(kind): sum(finding.severity is kind for finding in all_findings) for kind in RANK}


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, otherwise as they came."""
    return tuple(sorted(findings, key=lambda finding: RANK.index(finding.severity)))
