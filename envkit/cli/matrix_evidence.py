"""The evidence of rows, as `envkit matrix show` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envkit.facts.evidence import Evidence
    from envkit.facts.lookup import Entry

_QUOTE = 70  # characters of a quotation on a terminal


def evidence_of(entry: Entry) -> list[dict[str, Any]]:
    """The evidence of an entry's rows and builds as JSON, each with its grade."""
    return [{"table": table, "grade": evidence.grade, **evidence.to_json()} for table, evidence in _evidence(entry)]


def show_evidence(entry: Entry) -> None:
    """Print the evidence of an entry's rows and builds, and which values have none."""
    from envkit.cli.output import show_table
    from envkit.ground.text import fitted, neutral

    rows = [
        (
            evidence.row, evidence.field, _text(evidence.value), evidence.grade, evidence.kind,
            neutral(evidence.file or evidence.reference or ""),
            fitted(neutral(evidence.quote or ""), _QUOTE),
        )
        for _, evidence in _evidence(entry)
    ]  # fmt: skip
    click.echo("")
    if rows:
        show_table(("row", "field", "value", "grade", "from", "file", "quotation"), rows, title="evidence")
    click.echo(_rest(entry))


def _evidence(entry: Entry) -> Iterator[tuple[str, Evidence]]:
    from envkit.facts import evidence, tables
    from envkit.facts.check import name_of

    for table, rows in ((entry.table, entry.rows), ("builds", entry.builds)):
        if table in tables.BY_NAME:
            names = {name_of(tables.BY_NAME[table], row) for row in rows}
            yield from ((table, item) for item in evidence.read(table) if item.row in names)


def _rest(entry: Entry) -> str:
    """The grades of the rows that no file proves."""
    from collections import Counter

    from envkit.facts import tables
    from envkit.facts.check import name_of
    from envkit.facts.evidence import grade_of

    proved = {(table, evidence.row) for table, evidence in _evidence(entry)}
    grades: Counter[str] = Counter()
    for table, rows in ((entry.table, entry.rows), ("builds", entry.builds)):
        for row in rows:
            if table in tables.BY_NAME and (table, name_of(tables.BY_NAME[table], row)) not in proved:
                grades[grade_of((), getattr(row, "confidence", None))] += 1
    counted = ", ".join(f"{count} {grade}" for grade, count in sorted(grades.items())) or "none"
    return f"rows without evidence, by the grade of their sources: {counted}"


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
