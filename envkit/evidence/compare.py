"""Compare the values that files prove with those of the facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.facts.evidence import agrees, rows_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envkit.evidence.derive import Row
    from envkit.facts.evidence import Evidence
    from envkit.facts.model import Facts

SAME, DIFFERENT, MISSING = "same", "different", "no row"


@dataclass(frozen=True, slots=True)
class Compared:
    """A proved value and the value of the facts."""

    table: str
    evidence: Evidence
    stated: Any  # the value of the facts; also None if they have no such row
    state: str  # SAME, DIFFERENT or MISSING

    def __str__(self) -> str:
        subject = f"{self.table} {self.evidence.row}: {self.evidence.field}"
        if self.state == MISSING:
            return f"{subject}: the facts have no such row; {self.evidence.file} says {shown(self.evidence.value)}"
        return f"{subject}: the facts say {shown(self.stated)}, {self.evidence.file} says {shown(self.evidence.value)}"


def compare(facts: Facts, evidence_rows: Iterable[Row]) -> list[Compared]:
    """Compare every piece of evidence with the facts."""
    rows: dict[str, Mapping[str, Any]] = {}
    compared = []
    for table, evidence in evidence_rows:
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
    """Format a value for a message."""
    if value is None:
        return "nothing"
    return " ".join(map(str, value)) or "nothing" if isinstance(value, (tuple, list)) else str(value)
