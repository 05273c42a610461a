"""A diagnosis as text: the facts, then each finding with its evidence and fix."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from envkit.doctor.model import Diagnosis, Finding, Severity, counts
from envkit.ground.text import aligned

_INDENT = 9  # the width of the longest severity ("error") and the spaces around it
_LABELS = {"evidence": "seen", "cause": "why", "check": "check", "fix": "fix", "sources": "source"}
Line = tuple[str, Severity | None]
"""A line, and the severity that it begins with, for its color."""


def lines(diagnosis: Diagnosis, *, width: int, verbose: bool) -> Iterator[Line]:
    """Yield the lines of a diagnosis; prose is wrapped to `width`, commands and evidence are not.

    Without `verbose`, sources are left out.
    """
    for section in diagnosis.sections:
        if len(diagnosis.sections) > 1:
            yield section.title, None
        yield from ((line, None) for line in aligned(section.facts, indent="  "))
        for finding in section.findings:
            yield from _finding(finding, width=width, verbose=verbose)
        if section.facts or section.findings:
            yield "", None
    number = counts(diagnosis.findings)
    summary = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in number.items() if count)
    yield diagnosis.conclusion + (f" ({summary})" if summary else ""), None


def _plural(kind: str, count: int) -> str:
    word = {"error": "error", "warn": "warning", "info": "note"}[kind]
    return word if count == 1 else f"{word}s"


def _finding(finding: Finding, *, width: int, verbose: bool) -> Iterator[Line]:
    times = f" ({finding.times} times)" if finding.times > 1 else ""
    first, *rest = _wrapped(f"{finding.title}{times}", width - _INDENT) or [""]
    yield f"  {finding.severity:<{_INDENT - 2}}{first}", finding.severity
    yield from ((f"{'':{_INDENT}}{line}", None) for line in rest)
    evidence_lines = [
        f"line {evidence.line}: {evidence.text}" if evidence.line else evidence.text for evidence in finding.evidence
    ]
    # 8 is the width of the column of labels.
    parts = {
        "evidence": evidence_lines,
        "cause": _wrapped(finding.cause, width - _INDENT - 8),
        "check": list(finding.check),
        "fix": [line for text in finding.fix for line in _wrapped(text, width - _INDENT - 8)],
        "sources": list(finding.sources) if verbose else [],
    }
    for name, texts in parts.items():
        for index, line in enumerate(texts):
            yield f"{'':{_INDENT}}{_LABELS[name] if index == 0 else '':<8}{line}", None
    if finding.distinguish:
        yield f"{'':{_INDENT}}not to be confused with", None
        yield from ((f"{'':{_INDENT + 8}}{line}", None) for line in _wrapped(finding.distinguish, width - _INDENT - 8))
    for index, line in enumerate(finding.consequences):
        yield f"{'':{_INDENT}}{'then' if index == 0 else '':<8}{line}", None


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(40, width), break_long_words=False, break_on_hyphens=False)
