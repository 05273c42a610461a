"""Holds recorded evidence against the rows: a proof whose value is not the row's, or that has no row, is a finding."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from envkit.facts import evidence, tables
from envkit.facts.check import Finding, name_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envkit.facts.evidence import Evidence
    from envkit.facts.model import Facts


_WEEK = timedelta(days=7)


def agrees(one: Evidence, row: Any) -> bool:
    """Whether a row's value is the proved one."""
    stated = getattr(row, one.field)
    if one.field == "released" and isinstance(stated, str):
        return same_days(stated, str(one.value))
    if one.field.endswith("_pythons") and stated is None and one.value is not None:
        return bool(one.value == row.pythons)
    return bool(stated == one.value)


def same_days(announced: str, uploaded: str) -> bool:
    """Whether an announced day, or month, fits the day of the first upload: files are there up to a week off."""
    try:
        return abs(date.fromisoformat(announced) - date.fromisoformat(uploaded)) <= _WEEK
    except ValueError:
        return uploaded.startswith(announced)


def rows_by_name(facts: Facts, table: str) -> Mapping[str, Any]:
    """The rows of a table by the keys that evidence names them by."""
    known = tables.BY_NAME[table]
    return {name_of(known, row): row for row in rows_of(facts, known)}


def check_evidence(facts: Facts) -> list[Finding]:
    """Every recorded piece of evidence that contradicts the facts or is not what its kind has to be.

    A row that `until` says has ended is allowed to be missing.
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
            what = f"the row says {getattr(row, entry.field)!r}, {entry.file or entry.reference} says {entry.value!r}"
            yield Finding(table_name, entry.row, entry.field, what)
