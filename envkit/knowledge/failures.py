"""The knowledge base: known failures and the messages they leave in logs, read from `data/*.yaml`.

A row has an id, a title, a role, a severity, signatures, cause, check, fix, how to distinguish it from similar
failures, and sources. `role: cause` is the error itself, `role: effect` a message that several errors lead to, and
`role: end` a final message that follows any failure. `explains` lists the rows that this row causes if both are in
one log, `codes` the reason codes of verify records with the same meaning. `needs` and `refuted_by` are lines of the
same log: without one of the former, or with one of the latter, the log does not bear out the row, and it is not named.

A signature is a literal that the line must contain (case-insensitive) and, optionally, a regular expression, literals
of which one must be nearby, and an expression that excludes the line. Only lines with a literal are tested further,
so reading a log is about as fast as a text search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError

DATA = Path(__file__).parent / "data"
ROLES = ("cause", "effect", "end")
_ROW = {
    "id", "title", "role", "severity", "signatures", "cause", "check", "fix", "distinguish", "sources", "explains",
    "traps", "codes", "needs", "refuted_by",
}  # fmt: skip
_OPTIONAL = {"explains", "traps", "codes", "needs", "refuted_by"}
_SIGNATURE = {"has", "match", "near", "unless"}


class Severity(StrEnum):
    """How serious a finding is; traps in the facts have the same values."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A message that shows a failure. `has` and `near` are lowercase; one of `near` is at most `NEAR` lines away."""

    has: str
    match: str | None = None
    near: tuple[str, ...] = ()
    unless: str | None = None

    def fits(self, line: str) -> bool:
        """Return whether a line with `has` shows the failure; `near` is not tested."""
        if self.match is not None and not compiled(self.match).search(line):
            return False
        return self.unless is None or not compiled(self.unless).search(line)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a case-insensitive expression when the first line needs it."""
    return re.compile(pattern, re.IGNORECASE)


NEAR = 60
"""Lines before and after in which `near` is searched: the length of a traceback with its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A known failure; the module's docstring describes the fields."""

    id: str
    group: str  # the name of its file, without .yaml
    title: str
    role: str
    severity: Severity
    signatures: tuple[Signature, ...]
    cause: str
    check: tuple[str, ...]
    fix: tuple[str, ...]
    distinguish: str
    sources: tuple[str, ...]
    explains: tuple[str, ...]
    traps: tuple[str, ...]
    codes: tuple[str, ...]  # reason codes of verify records that mean the same
    needs: tuple[Signature, ...] = ()  # of which one must be somewhere in the log
    refuted_by: tuple[Signature, ...] = ()  # of which none may be in the log


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of all files, in the order of the files' names.

    Raises:
        UsageError: a file is invalid.
    """
    all_rows: list[Row] = []
    for path in sorted(DATA.glob("*.yaml")):
        tree = strictyaml.read_file(path)
        if not isinstance(tree, dict) or tree.get("schema") != "1":
            raise UsageError(f"{path}: schema: 1 is missing", hint="begin the file with 'schema: 1'")
        listed = tree.get("rows")
        all_rows += [_row(entry, path) for entry in (listed if isinstance(listed, list) else [])]
    by_id = {entry.id: entry for entry in all_rows}
    if len(by_id) != len(all_rows):
        raise UsageError("two rows of the knowledge base have the same id")
    for row in all_rows:
        unknown = [name for name in row.explains if name not in by_id]
        if unknown:
            raise UsageError(f"{row.id}: explains {unknown[0]!r}, which is not a row")
    return tuple(all_rows)


def row(ident: str) -> Row:
    """Return the row with an ID.

    Raises:
        KeyError: the ID is unknown.
    """
    return {entry.id: entry for entry in rows()}[ident]


def _row(tree: Any, path: Path) -> Row:
    if not isinstance(tree, dict) or not isinstance(tree.get("id"), str):
        raise UsageError(f"{path}: a row has no id")
    name = f"{path}: {tree['id']}"
    if set(tree) - _ROW or _ROW - _OPTIONAL - set(tree):
        wrong = sorted((set(tree) - _ROW) | (_ROW - _OPTIONAL - set(tree)))
        raise UsageError(f"{name}: unknown or missing fields: {', '.join(wrong)}")
    if tree["role"] not in ROLES or tree["severity"] not in tuple(Severity):
        raise UsageError(f"{name}: role must be one of {', '.join(ROLES)}, severity one of {', '.join(Severity)}")
    return Row(
        id=tree["id"],
        group=path.stem,
        title=tree["title"],
        role=tree["role"],
        severity=Severity(tree["severity"]),
        signatures=tuple(_signature(signature, name) for signature in tree["signatures"]),
        cause=tree["cause"],
        check=_lines(tree["check"]),
        fix=_lines(tree["fix"]),
        distinguish=tree["distinguish"],
        sources=_lines(tree["sources"]),
        explains=_lines(tree.get("explains")),
        traps=_lines(tree.get("traps")),
        codes=_lines(tree.get("codes")),
        needs=tuple(_signature(signature, name) for signature in tree.get("needs", ())),
        refuted_by=tuple(_signature(signature, name) for signature in tree.get("refuted_by", ())),
    )


def _signature(tree: Any, name: str) -> Signature:
    if isinstance(tree, str):
        tree = {"has": tree}
    if not isinstance(tree, dict) or set(tree) - _SIGNATURE or not isinstance(tree.get("has"), str):
        raise UsageError(f"{name}: a signature must be a string or a mapping of has, match, near and unless")
    return Signature(
        has=tree["has"].lower(),
        match=tree.get("match"),
        near=tuple(text.lower() for text in _lines(tree.get("near"))),
        unless=tree.get("unless"),
    )


def _lines(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(line) for line in value)
