"""What files prove beside what the facts say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.facts.check_evidence import agrees, rows_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envkit.evidence.derive import Row
    from envkit.facts.evidence import Evidence
    from envkit.facts.model import Facts

SAME, DIFFERENT, MISSING = "same", "different", "no row"


@dataclass(frozen=True, slots=True)
class Compared:
    """One proved value beside the value of the facts."""

    table: str
    evidence: Evidence
    stated: Any  # what the facts have; None where they have no such row either
    state: str

    def __str__(self) -> str:
        subject = f"{self.table} {self.evidence.row}: {self.evidence.field}"
        if self.state == MISSING:
            return f"{subject}: the facts have no such row; {self.evidence.file} says {shown(self.evidence.value)}"
        return f"{subject}: the facts say {shown(self.stated)}, {self.evidence.file} says {shown(self.evidence.value)}"


def compare(facts: Facts, found: Iterable[Row]) -> list[Compared]:
    """Every piece of evidence with the value that the facts have."""
    rows: dict[str, Mapping[str, Any]] = {}
    compared = []
    for table, evidence in found:
        if table not in rows:
            rows[table] = rows_by_name(facts, table)
        row = rows[table].get(evidence.row)
        if row is None or not hasattr(row, evidence.field):
            compared.append(Compared(table, evidence, None, MISSING))
            continue
        compared.append(
            Compared(table, evidence, getattr(row, evidence.field), SAME if agrees(evidence, row) else DIFFERENT)
        )
    return compared


def shown(value: Any) -> str:
    """A value as a message has it."""
    if value is None:
        return "nothing"
    return " ".join(map(str, value)) or "nothing" if isinstance(value, (tuple, list)) else str(value)
