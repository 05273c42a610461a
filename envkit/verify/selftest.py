"""Self-test of the comparison: whether it raises false alarms on this machine and notices a real slowdown."""

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
SLOWDOWN = 1.5  # factor on the work, which a comparison has to notice
SPLITS = 100
"""Random splits of the unchanged launches into two sides, besides the split as launched."""
ALARMS = 0.05
"""The largest share of them that may raise an alarm."""
_ALARMS = (Change.REGRESSION, Change.IMPROVEMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The result of a self-test. Timing rules count on this machine if it is `trusted`."""

    hw: str | None
    launches: int
    alarms: int  # false ones, in `splits` comparisons of unchanged launches
    splits: int
    silent: bool  # no alarm in the split as launched, and few in the random ones
    noticed: bool  # the injected slowdown
    rows: tuple[Row, ...]  # of the slowed side

    @property
    def trusted(self) -> bool:
        """Whether comparing an image with itself raises no alarm."""
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
    """Launch the same image as A, as A again, and slowed down: its timed work is repeated 1.5 times.

    `keep` is called with every record that counts and its side: 0, 1 or 2.

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
    """Compare A with A, as launched and in random splits, and A with the slowed launches. Pure."""
    same = [*first, *again]
    order = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    alarms = 0
    # Launches of unchanged code can be exchanged, so every split compares A with A once more.
    for _ in range(SPLITS):
        shuffled = order.sample(same, len(same))
        alarms += any_alarm(compare(shuffled[: len(first)], shuffled[len(first) :]))
    rows = compare(first, slow)
    as_launched = any_alarm(compare(first, again))
    return SelfTest(
        hw=hw,
        launches=len(first),
        alarms=alarms,
        splits=SPLITS,
        silent=not as_launched and alarms <= ALARMS * SPLITS,
        noticed=overall(rows) is Change.REGRESSION,
        rows=rows,
    )


def any_alarm(rows: Sequence[Row]) -> bool:
    """Whether any row claims a difference."""
    return any(row.change in _ALARMS for row in rows)


def remember(state: Path, result: SelfTest) -> None:
    """Save the result for this hardware in the state folder.

    Raises:
        OSError: the folder is not writable.
    """
    known = _known(state)
    known[str(result.hw)] = {"trusted": result.trusted, "alarms": result.alarms, "splits": result.splits}
    write_atomic(state / NAME, json.dumps({"schema": SCHEMA, "machines": known}, indent=1).encode() + b"\n")


def distrusted(state: Path) -> frozenset[str]:
    """Return the hardware fingerprints on which a self-test failed; empty without a self-test."""
    return frozenset(hw for hw, item in _known(state).items() if item.get("trusted") is False)


def _known(state: Path) -> dict[str, Mapping[str, Any]]:
    try:
        tree = json.loads((state / NAME).read_bytes())
        machines = tree["machines"] if tree["schema"] == SCHEMA else {}
        return {str(hw): dict(item) for hw, item in machines.items()}
    # Without a file, or with a damaged one, no self-test counts as failed: timing is trusted by default.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
