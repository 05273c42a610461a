"""Evidence for the values of rows: bytes of a file with a known hash, or a sentence of a document.

`data/evidence/TABLE.jsonl` has one line per value, sorted. It is not part of the snapshot, so the resolver never
reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from envkit.facts import edited, tables
from envkit.facts.check import Finding, name_of, rows_of
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from envkit.facts.model import Facts

FILE_LIST, METADATA, VERSION_PY, ARCH_STRING = "file list", "metadata", "version.py", "architecture string"
ARCH_TABLE, MACHINE_CODE, SYMBOL_VERSIONS = "architecture table", "machine code", "symbol versions"
REPODATA, REDISTRIBUTABLES, DOCUMENT = "repodata", "redistributable list", "document"
OF_FILES = (FILE_LIST, METADATA, VERSION_PY, ARCH_STRING, MACHINE_CODE, SYMBOL_VERSIONS, REPODATA, REDISTRIBUTABLES)
KINDS = (*OF_FILES, ARCH_TABLE, DOCUMENT)
GRADES = ("proved", "quoted", "cited", "inferred", "conflict")
"""How certain a value is, most certain first; `conflict` marks sources that contradict each other."""
_HEX = 64  # digits of a SHA-256
_WEEK = timedelta(days=7)  # files are uploaded up to a week before or after the announcement


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence for one value."""

    row: str  # the row's key, from `envkit.facts.check.name_of`: '2.15.0 13.2 pypi linux-64'
    field: str
    value: Any  # JSON: text, a list of texts, or null
    kind: str  # of KINDS
    file: str | None = None  # name of the file
    sha256: str | None = None  # of the file, or of the file list
    member: str | None = None  # within the file
    offset: int | None = None  # of the quoted bytes within the member
    quote: str | None = None  # the bytes, or the sentence of a document
    date: str | None = None  # ISO; of the upload or of the document
    reference: str | None = None  # of a document: repository, commit and path, or URL
    until: str | None = None  # why the row was removed, with a reference

    @property
    def grade(self) -> str:
        """How certain the value is, one of GRADES."""
        if self.kind in OF_FILES and self.sha256 is not None:
            return "proved"
        return "quoted" if self.quote and (self.reference or self.sha256) and self.date else "cited"

    def to_json(self) -> dict[str, Any]:
        """Return the fields that have a value."""
        tree = {name: value for name, value in asdict(self).items() if value is not None or name == "value"}
        return tree | {"value": list(self.value) if isinstance(self.value, tuple) else self.value}


def grade_of(evidence: Iterable[Evidence], confidence: str | None) -> str:
    """Return the grade of a value from its best evidence, otherwise from the confidence of its row.

    Evidence of the same grade with different values is a conflict.
    """
    rows = tuple(evidence)
    if not rows:
        return {"inferred": "inferred", "unknown": "inferred", "conflict": "conflict"}.get(confidence or "", "cited")
    best = min((row.grade for row in rows), key=GRADES.index)
    values = {json.dumps(row.value) for row in rows if row.grade == best}
    return "conflict" if len(values) > 1 else best


def text_of(rows: Iterable[Evidence]) -> str:
    """Return the text of a table's file: sorted lines without duplicates."""
    lines = {json.dumps(row.to_json(), ensure_ascii=True, separators=(", ", ": ")) for row in rows}
    return "".join(f"{line}\n" for line in sorted(lines))


def path_of(table: str) -> Path:
    """Return the path of a table's evidence file."""
    return edited.DATA / "evidence" / f"{table}.jsonl"


def read(table: str) -> tuple[Evidence, ...]:
    """Return the evidence of a table; empty if it has none.

    Raises:
        UsageError: a line of the file is not a row of evidence.
    """
    return _read(path_of(table))


@cache
def _read(path: Path) -> tuple[Evidence, ...]:
    if not path.exists():
        return ()
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            tree = json.loads(line)
            value = tree["value"]
            row = Evidence(**{**tree, "value": tuple(value) if isinstance(value, list) else value})
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{path.name}:{number} is not a row of evidence", hint="envkit matrix update --write generates the file"
            ) from error
        rows.append(row)
    return tuple(rows)


def faults(row: Evidence) -> list[tuple[str, str]]:
    """Return the errors of a row of evidence as field and reason."""
    problems = []
    if row.kind not in KINDS:
        problems.append(("kind", f"{row.kind!r} is not one of {', '.join(KINDS)}"))
    if row.kind in OF_FILES and (row.sha256 is None or len(row.sha256) != _HEX):
        problems.append(("sha256", "a proof needs the SHA-256 of its file"))
    if row.kind in (ARCH_TABLE, DOCUMENT) and not row.quote:
        problems.append(("quote", "a document needs the sentence with the value"))
    if row.kind == DOCUMENT and not (row.reference and row.date):
        problems.append(("reference", "a document needs its reference and its date or commit"))
    if row.kind == DOCUMENT and row.quote and not _quotes_value(row):
        problems.append(("quote", f"the quotation does not contain {row.value!r}"))
    return problems


def _quotes_value(row: Evidence) -> bool:
    """Return whether a quotation contains the value; a CUDA version may be in the form of a tag, `cu129`."""
    values = row.value if isinstance(row.value, tuple) else (row.value,)
    texts = [str(value) for value in values if value is not None]
    quote = row.quote or ""
    return all(text in quote or f"cu{text.replace('.', '')}" in quote for text in texts)


def agrees(entry: Evidence, row: Any) -> bool:
    """Return whether a row has the value of the evidence."""
    stated = getattr(row, entry.field)
    if entry.field == "released" and isinstance(stated, str):
        return same_days(stated, str(entry.value))
    # A row without its own list has the Pythons of torch.
    if entry.field.endswith("_pythons") and stated is None and entry.value is not None:
        return bool(entry.value == row.pythons)
    return bool(stated == entry.value)


def same_days(announced: str, uploaded: str) -> bool:
    """Return whether an announced day, or month, is consistent with the day of the first upload."""
    try:
        return abs(date.fromisoformat(announced) - date.fromisoformat(uploaded)) <= _WEEK
    except ValueError:
        # Only a month was announced: `2024-07`.
        return uploaded.startswith(announced)


def rows_by_name(facts: Facts, table: str) -> Mapping[str, Any]:
    """Return the rows of a table by their keys, as evidence has them."""
    known = tables.BY_NAME[table]
    return {name_of(known, row): row for row in rows_of(facts, known)}


def check_evidence(facts: Facts) -> list[Finding]:
    """Return a finding for each piece of evidence that contradicts the facts or is invalid.

    A row may be missing if its evidence has `until`, which means that the row was removed.
    """
    findings: list[Finding] = []
    for table in tables.BY_NAME:
        recorded = read(table)
        if recorded:
            findings.extend(_check(table, recorded, rows_by_name(facts, table)))
    return findings


def _check(table: str, recorded: Iterable[Evidence], rows: Mapping[str, Any]) -> Iterable[Finding]:
    table_name = f"evidence/{table}"
    for entry in recorded:
        for field, what in faults(entry):
            yield Finding(table_name, entry.row, field, f"{entry.field}: {what}")
        row = rows.get(entry.row)
        if row is None:
            if entry.until is None:
                yield Finding(table_name, entry.row, entry.field, "the facts have no such row")
        elif not hasattr(row, entry.field):
            yield Finding(table_name, entry.row, entry.field, f"is not a field of {table}")
        elif not agrees(entry, row):
            stated = getattr(row, entry.field)
            fault = f"the row says {stated!r}, {entry.file or entry.reference} says {entry.value!r}"
            yield Finding(table_name, entry.row, entry.field, fault)
