"""Change 1,000 values of the facts, one at a time, and report what detects each change.

    python -m benchmarks.facts_mutations [--values 1000] [--seed 20261122] [--online]

A change is caught by an invariant (`matrix check`), by recorded evidence (`matrix check`), with --online by the files
of the index (`matrix check --online`, all releases; 400 MB the first time), or by nothing. Uncaught changes are listed
by table and field. Prose (notes, titles, effects, fixes) is left out. Every change of a proved value must be caught.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import time
from collections import Counter
from typing import Any

from benchmarks._report import Figure, finish, tell
from envkit.evidence.compare import DIFFERENT, compare
from envkit.evidence.derive import Row
from envkit.evidence.prove import prove_release
from envkit.evidence.read import Level
from envkit.facts import edited, evidence
from envkit.facts.check import check, name_of, rows_of
from envkit.facts.evidence import agrees, check_evidence
from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.facts.tables import TABLES, Table
from envkit.ground import settings
from envkit.ground.paths import cache_dir
from envkit.ground.progress import Silent
from envkit.ground.versions import key
from envkit.pipeline.proving import open_index

PROSE = frozenset({"note", "title", "effect", "fix"})
_CATCHERS = ("an invariant", "recorded evidence", "the files of the index", "nothing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One changed value."""

    table: Table
    row: str
    field: str
    old: Any
    new: Any
    facts: Facts

    def __str__(self) -> str:
        return f"{self.table.name} {self.row}: {self.field} {self.old!r:.60} -> {self.new!r:.60}"


def changed(facts: Facts, chosen: random.Random) -> Change:
    """Return a change of one value of the facts: any table, any row, any field except prose."""
    table = chosen.choice(TABLES)
    rows = rows_of(facts, table)
    at = chosen.randrange(len(rows))
    field = chosen.choice([name for name in table.columns if name not in PROSE])
    old = getattr(rows[at], field)
    others = [value for row in rows if (value := getattr(row, field)) != old]
    new = _other(old, others, chosen)
    row = dataclasses.replace(rows[at], **{field: new})
    had = getattr(facts, table.name)
    made: Any = {**had, name_of(table, rows[at]): row} if isinstance(had, dict) else (*rows[:at], row, *rows[at + 1 :])
    return Change(
        table=table, row=name_of(table, rows[at]), field=field, old=old, new=new,
        facts=dataclasses.replace(facts, **{table.name: made}),
    )  # fmt: skip


def _other(old: Any, others: list[Any], chosen: random.Random) -> Any:
    """Return another value: from another row of the same table, or a variation of this one."""
    if others and (old is None or chosen.random() < 0.5):  # only other rows show the type of a missing value
        return chosen.choice(others)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return old + 1
    if isinstance(old, tuple):
        gone = chosen.randrange(len(old)) if old else 0
        return old[:gone] + old[gone + 1 :] if old and chosen.random() < 0.5 else (*old, "99.9")
    if isinstance(old, dict):
        return {name: not value if isinstance(value, bool) else f"{value}9" for name, value in old.items()}
    return f"{old}9" if old else "9.9"


def caught_by(change: Change, facts: Facts, derived: list[Row] | None) -> str:
    """Return which check catches the change."""
    if check(change.facts):
        return _CATCHERS[0]
    if check_evidence(change.facts):
        return _CATCHERS[1]
    mine = [row for row in derived or () if row[0] == change.table.name and row[1].row == change.row]
    before = {result.evidence for result in compare(facts, mine) if result.state == DIFFERENT}
    if any(result.state == DIFFERENT and result.evidence not in before for result in compare(change.facts, mine)):
        return _CATCHERS[2]
    return _CATCHERS[3]


def proved(change: Change) -> bool:
    """Whether a file proves the value that was changed, and disagrees with the new one."""
    row = next((row for row in rows_of(change.facts, change.table) if name_of(change.table, row) == change.row), None)
    return any(
        item.row == change.row and item.field == change.field and item.grade == "proved"
        and (row is None or not agrees(item, row))
        for item in evidence.read(change.table.name)
    )  # fmt: skip


def _derived(facts: Facts) -> list[Row]:
    """Return the rows that the files of the index give for every release."""
    rows: list[Row] = []
    with open_index(settings.load({}, os.environ, edited.DATA), Silent()) as index:
        for torch in sorted(facts.releases, key=key):
            rows.extend(prove_release(index, torch, facts, Level(), cache=cache_dir()).rows)
    return rows


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--online", action="store_true")
    options = parser.parse_args()
    facts, chosen, began = load(), random.Random(options.seed), time.monotonic()  # noqa: S311 - not a secret
    derived = _derived(facts) if options.online else None
    counts, missed = Counter[tuple[str, str]](), Counter[str]()
    lost, of_proved = 0, 0
    for _ in range(options.values):
        change = changed(facts, chosen)
        catcher = caught_by(change, facts, derived)
        counts[change.table.name, catcher] += 1
        if proved(change):
            of_proved += 1
            lost += catcher == _CATCHERS[3]
        if catcher == _CATCHERS[3]:
            missed[f"{change.table.name}.{change.field}"] += 1
    for table in TABLES:
        parts = [f"{counts[table.name, catcher]} by {catcher}" for catcher in _CATCHERS if counts[table.name, catcher]]
        tell(f"{table.name}: {', '.join(parts)}")
    tell("caught by nothing: " + ", ".join(f"{name} {count}" for name, count in missed.most_common()))
    for catcher in _CATCHERS:
        tell(f"{sum(count for (_, by), count in counts.items() if by == catcher)} by {catcher}")
    against = f"{of_proved} changes of proved values among {options.values}, {time.monotonic() - began:.0f} s"
    return finish("facts_mutations", [
        Figure(name="proved values lost", figure=lost, unit="", better="lower", goal=0, against=against),
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
