"""What proves a value of a row: the bytes of a file with a known hash, or a sentence of a document.

`data/evidence/TABLE.jsonl` holds one line per value, sorted. It is not part of the snapshot, so the resolver never
reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from envkit.facts import edited
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE_LIST, METADATA, VERSION_PY, ARCH_STRING = "file list", "metadata", "version.py", "architecture string"
ARCH_TABLE, MACHINE_CODE, SYMBOL_VERSIONS = "architecture table", "machine code", "symbol versions"
REPODATA, REDISTRIBUTABLES, DOCUMENT = "repodata", "redistributable list", "document"
OF_FILES = (FILE_LIST, METADATA, VERSION_PY, ARCH_STRING, MACHINE_CODE, SYMBOL_VERSIONS, REPODATA, REDISTRIBUTABLES)
KINDS = (*OF_FILES, ARCH_TABLE, DOCUMENT)
GRADES = ("proved", "quoted", "cited", "inferred", "conflict")
"""How certain a value is, most certain first; `conflict` marks sources that contradict each other."""
_HEX = 64  # digits of a SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What proves one value."""

    row: str  # the row's key, as `envkit.facts.check.name_of` has it: '2.15.0 13.2 pypi linux-64'
    field: str
    value: Any  # JSON: text, a list of texts, or null
    kind: str  # of KINDS
    file: str | None = None  # name of the file
    sha256: str | None = None  # of the file; of a file list, of the list itself
    member: str | None = None  # within the file
    offset: int | None = None  # of the quoted bytes within the member
    quote: str | None = None  # the bytes, or the sentence of a document
    date: str | None = None  # the day it was read or the document's own, ISO
    reference: str | None = None  # a document: repository, commit and path, or URL
    until: str | None = None  # why the row ends, with the reference for its removal

    @property
    def grade(self) -> str:
        """How certain the value is: of GRADES."""
        if self.kind in OF_FILES and self.sha256 is not None:
            return "proved"
        return "quoted" if self.quote and (self.reference or self.sha256) and self.date else "cited"

    def to_json(self) -> dict[str, Any]:
        """The fields that have a value."""
        tree = {name: value for name, value in asdict(self).items() if value is not None or name == "value"}
        return tree | {"value": list(self.value) if isinstance(self.value, tuple) else self.value}


def grade_of(evidence: Iterable[Evidence], confidence: str | None) -> str:
    """The grade of a value: of its best evidence, else what its row's confidence says.

    Two proofs of different values are a conflict.
    """
    rows = tuple(evidence)
    if not rows:
        return {"inferred": "inferred", "unknown": "inferred", "conflict": "conflict"}.get(confidence or "", "cited")
    best = min((row.grade for row in rows), key=GRADES.index)
    values = {json.dumps(row.value) for row in rows if row.grade == best}
    return "conflict" if len(values) > 1 else best


def text_of(rows: Iterable[Evidence]) -> str:
    """The lines of a table's file, sorted, each once."""
    lines = {json.dumps(row.to_json(), ensure_ascii=True, separators=(", ", ": ")) for row in rows}
    return "".join(f"{line}\n" for line in sorted(lines))


def path_of(table: str) -> Path:
    """The evidence file of a table."""
    return edited.DATA / "evidence" / f"{table}.jsonl"


def read(table: str) -> tuple[Evidence, ...]:
    """The evidence of a table; empty where nothing is recorded for it.

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
                f"{path.name}:{number}: is not a row of evidence", hint="envkit matrix update --write makes it again"
            ) from error
        rows.append(row)
    return tuple(rows)


def faults(row: Evidence) -> list[tuple[str, str]]:
    """What is wrong with a row of evidence by itself: field and reason."""
    problems = []
    if row.kind not in KINDS:
        problems.append(("kind", f"{row.kind!r} is not one of {', '.join(KINDS)}"))
    if row.kind in OF_FILES and (row.sha256 is None or len(row.sha256) != _HEX):
        problems.append(("sha256", "a proof names its file by SHA-256"))
    if row.kind in (ARCH_TABLE, DOCUMENT) and not row.quote:
        problems.append(("quote", "a document needs the sentence that says it"))
    if row.kind == DOCUMENT and not (row.reference and row.date):
        problems.append(("reference", "a document needs its reference and its date or commit"))
    if row.kind == DOCUMENT and row.quote and not _named(row):
        problems.append(("quote", f"the quotation does not name {row.value!r}"))
    return problems


def _named(row: Evidence) -> bool:
    """Whether a quotation has the value in it; a CUDA version may stand in the form of a tag, `cu129`."""
    values = row.value if isinstance(row.value, tuple) else (row.value,)
    texts = [str(value) for value in values if value is not None]
    quote = row.quote or ""
    return all(text in quote or f"cu{text.replace('.', '')}" in quote for text in texts)
