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
    """Two sides compared. `interleaved` is whether their launches took turns; `notes` are things to know."""

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
        """7 for a regression, 5 where nothing can be said, else 0."""
        codes = {Change.REGRESSION: REGRESSION_EXIT, Change.INCONCLUSIVE: NotVerifiedError.exit_code}
        return codes.get(self.change, 0)

    @property
    def smallest_p(self) -> float:
        """The smallest adjusted p-value that so many launches and metrics can give."""
        tested = [row for row in self.rows if row.p is not None]
        # Holm multiplies the smallest p by the number of metrics: with many of them, few launches can never be enough.
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
    """Compare two sides; notes say what the rows leave open."""
    rule = Rule.shipped()
    rows = compare(first.launches, second.launches, rule)
    said = [*notes, *gaps(first, second)]
    if not interleaved:
        said.append("the launches were not interleaved: a machine that drifts in between shows as a difference")
    if any(row.left_out for row in rows):
        kept = min(min(len(row.first), len(row.second)) for row in rows)
        said.append(f"the machine was busy: only the calmer launches count, {kept} per side at least")
    if not rows:
        said.append("nothing that ran is timed")
    return Comparison(
        first=first, second=second, rows=rows, rule=rule, interleaved=interleaved, seed=seed, notes=tuple(said)
    )


def takes_turns(first: Side, second: Side) -> bool:
    """Whether the launches of two recorded sides took turns: no side ran a third of all launches in a row."""
    runs = sorted(
        [(str(record["run"]["started"]), 0) for record in first.records]
        + [(str(record["run"]["started"]), 1) for record in second.records]
    )
    longest = length = 0
    for index, (_, side) in enumerate(runs):
        length = length + 1 if index and side == runs[index - 1][1] else 1
        longest = max(longest, length)
    # A third, rounded up: of 10 random launches, four in a row do not show that the sides were run one after the other.
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
    """Every reason why a clock was not trusted in this launch."""
    gates = [str((check.get("noise") or {}).get("gate", "clean")) for check in record["checks"]]
    return sorted({gate for gate in gates if gate != "clean"})
