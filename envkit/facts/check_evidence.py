"""Compare recorded evidence with the rows: evidence with another value, or without a row, is a finding."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from envkit.facts import evidence, tables
from envkit.facts.check import Finding, name_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envkit.facts.evidence import Evidence
    from envkit.facts.model import Facts


_WEEK = timedelta(days=7)  # files are uploaded up to a week before or after the announcement


def agrees(entry: Evidence, row: Any) -> bool:
    """Return whether a row has the value of the evidence."""
    stated = getattr(row, entry.field)
    if entry.field == "released" and isinstance(stated, str):
        return same_days(stated, str(entry.value))
    if entry.field.endswith("_pythons") and stated is None and entry.value is not None:
        return bool(entry.value == row.pythons)
    return bool(stated == entry.value)


def same_days(announced: str, uploaded: str) -> bool:
    """Return whether an announced day, or month, is consistent with the day of the first upload."""
    try:
        return abs(date.fromisoformat(announced) - date.fromisoformat(uploaded)) <= _WEEK
    except ValueError:
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
        recorded = evidence.read(table)
        if recorded:
            findings.extend(_check(table, recorded, rows_by_name(facts, table)))
    return findings


def _check(table: str, recorded: Iterable[Evidence], rows: Mapping[str, Any]) -> Iterable[Finding]:
    table_name = f"evidence/{table}"
    for entry in recorded:
        for field, what in evidence.faults(entry):
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
