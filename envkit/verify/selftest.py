"""Self-test of the comparison: does it raise false alarms on this machine, and does it notice a real slowdown?"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from envkit.ground.store import write_atomic
from envkit.verify.compare.decide import Change, Launch, Row, Rule, compare, overall
from envkit.verify.compare.launches import Subject, gather
from envkit.verify.compare.metrics import readings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from envkit.ground.progress import Reporter

SCHEMA = "envkit.self-test/1"
NAME = "self-test.json"
SLOWDOWN = 1.5  # times the work: the slowdown that a comparison has to see
SPLITS = 100
"""Random splits of the unchanged launches into two sides, besides the split as launched."""
ALARMS = 0.05
"""The share of them that may raise an alarm."""
_LOUD = (Change.REGRESSION, Change.IMPROVEMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The result of a self-test. `trusted` says whether timing rules may count on this machine."""

    hw: str | None
    launches: int
    alarms: int  # of `splits`, nothing having changed
    splits: int
    silent: bool
    noticed: bool  # the injected slowdown
    rows: tuple[Row, ...]  # of the slowed side

    @property
    def trusted(self) -> bool:
        """Whether A/A stays silent."""
        return self.silent

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        rows = [row.to_json() for row in self.rows]
        return {"schema": SCHEMA, **asdict(self), "rows": rows, "trusted": self.trusted, "slowdown": SLOWDOWN}


def self_test(
    subject: Subject,
    reporter: Reporter,
    *,
    launches: int | None,
    seed: int,
    keep: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> SelfTest:
    """Launch the same image as A, as A again, and slowed: its timed bodies are repeated 1.5 times.

    `keep` gets every record that counts, with 0, 1 or 2 for the side.

    Raises:
        VerificationError: the image does not run, or nothing in it is timed.
    """
    launch = {**(subject.options.launch or {}), "body_factor": SLOWDOWN}
    slowed = replace(subject, options=replace(subject.options, launch=launch))
    least = Rule.shipped().launches
    sides = gather([subject, subject, slowed], reporter, launches=launches, seed=seed, least=least, keep=keep)
    first, again, slow = ([readings(record) for record in side] for side in sides)
    return judge_self_test(first, again, slow, hw=sides[0][0]["env"]["fingerprint"]["hw"], seed=seed)


def judge_self_test(
    first: Sequence[Launch], again: Sequence[Launch], slow: Sequence[Launch], *, hw: str | None, seed: int
) -> SelfTest:
    """Pure: A against A as launched and dealt again, and A against the slowed launches."""
    same = [*first, *again]
    order = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    alarms = 0
    for _ in range(SPLITS):
        dealt = order.sample(same, len(same))
        alarms += overall_loud(compare(dealt[: len(first)], dealt[len(first) :]))
    rows = compare(first, slow)
    launched = overall_loud(compare(first, again))
    return SelfTest(
        hw=hw,
        launches=len(first),
        alarms=alarms,
        splits=SPLITS,
        silent=not launched and alarms <= ALARMS * SPLITS,
        noticed=overall(rows) is Change.REGRESSION,
        rows=rows,
    )


def overall_loud(rows: Sequence[Row]) -> bool:
    """Whether any row claims a difference."""
    return any(row.change in _LOUD for row in rows)


def remember(state: Path, found: SelfTest) -> None:
    """Note the outcome for this hardware in the state folder.

    Raises:
        OSError: the folder cannot be written.
    """
    known = _known(state)
    known[str(found.hw)] = {"trusted": found.trusted, "alarms": found.alarms, "splits": found.splits}
    write_atomic(state / NAME, json.dumps({"schema": SCHEMA, "machines": known}, indent=1).encode() + b"\n")


def distrusted(state: Path) -> frozenset[str]:
    """The hardware fingerprints on which A/A raised an alarm; none where no self-test was made."""
    return frozenset(hw for hw, item in _known(state).items() if item.get("trusted") is False)


def _known(state: Path) -> dict[str, Mapping[str, Any]]:
    try:
        tree = json.loads((state / NAME).read_bytes())
        machines = tree["machines"] if tree["schema"] == SCHEMA else {}
        return {str(hw): dict(item) for hw, item in machines.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
