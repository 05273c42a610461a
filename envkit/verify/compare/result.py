"""The result of a comparison: one verdict, its exit code, and the document `envkit.compare/1`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envkit import __version__
from envkit.ground.errors import NotVerifiedError
from envkit.verify.compare.decide import Change, Row, Rule, compare, overall
from envkit.verify.compare.sides import gaps
from envkit.verify.compare.statistics import smallest_p

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.verify.compare.sides import Side

SCHEMA = "envkit.compare/1"
REGRESSION_EXIT = 7  # performance regression


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides compared. `interleaved`: their launches took turns; `notes`: what else the reader should know."""

    first: Side
    second: Side
    rows: tuple[Row, ...]
    rule: Rule
    interleaved: bool
    seed: int | None
    notes: tuple[str, ...]

    @property
    def change(self) -> Change:
        """The verdict on the second side."""
        return overall(self.rows)

    @property
    def exit_code(self) -> int:
        """7 for a regression, 5 if inconclusive, else 0."""
        codes = {Change.REGRESSION: REGRESSION_EXIT, Change.INCONCLUSIVE: NotVerifiedError.exit_code}
        return codes.get(self.change, 0)

    @property
    def smallest_p(self) -> float:
        """The smallest possible adjusted p-value for these numbers of launches and metrics."""
        tested = [row for row in self.rows if row.p is not None]
        # Holm multiplies the smallest p by the number of metrics, so with many metrics few launches are never enough.
        reachable = [smallest_p(len(row.first), len(row.second)) for row in tested]
        return min(1.0, max(reachable) * len(tested)) if tested else 1.0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {
            "schema": SCHEMA,
            "envkit": __version__,
            "verdict": str(self.change),
            "exit_code": self.exit_code,
            "first": _side(self.first),
            "second": _side(self.second),
            "fingerprint": {key: self.first.records[0]["env"]["fingerprint"][key] for key in ("hw", "policy")},
            "interleaved": self.interleaved,
            "seed": self.seed,
            "rule": asdict(self.rule),
            "smallest_p": self.smallest_p,
            "metrics": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }


def compared(
    first: Side, second: Side, *, interleaved: bool, seed: int | None = None, notes: tuple[str, ...] = ()
) -> Comparison:
    """Compare two sides and add notes about what limits the result."""
    rule = Rule.shipped()
    rows = compare(first.launches, second.launches, rule)
    remarks = [*notes, *gaps(first, second)]
    if not interleaved:
        remarks.append("the launches were not interleaved: drift of the machine between them shows as a difference")
    if any(row.left_out for row in rows):
        kept = min(min(len(row.first), len(row.second)) for row in rows)
        remarks.append(f"the machine was busy: only the quieter launches count, at least {kept} per side")
    if not rows:
        remarks.append("no check that ran is timed")
    return Comparison(
        first=first, second=second, rows=rows, rule=rule, interleaved=interleaved, seed=seed, notes=tuple(remarks)
    )


def takes_turns(first: Side, second: Side) -> bool:
    """Whether the launches of two recorded sides took turns: no side ran more than a third of all launches in a row."""
    runs = sorted(
        [(str(record["run"]["started"]), 0) for record in first.records]
        + [(str(record["run"]["started"]), 1) for record in second.records]
    )
    longest = length = 0
    for index, (_, side) in enumerate(runs):
        length = length + 1 if index and side == runs[index - 1][1] else 1
        longest = max(longest, length)
    # A third, rounded up: in a random order of 10 launches, four of one side in a row are nothing unusual.
    return 3 * longest <= len(runs) + 2


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "launches": [
            {
                "id": record["run"]["id"],
                "started": record["run"]["started"],
                "image": record["subject"]["id"],
                "sw": record["env"]["fingerprint"]["sw"],
                "noise": _noise(record),
            }
            for record in side.records
        ],
    }


def _noise(record: Mapping[str, Any]) -> list[str]:
    """Return every reason why wall times of this launch are unreliable."""
    gates = [str((check.get("noise") or {}).get("gate", "clean")) for check in record["checks"]]
    return sorted({gate for gate in gates if gate != "clean"})
