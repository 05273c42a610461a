"""How often `envkit compare` raises a false alarm, and whether it detects a slowdown of 25 %, in real launches.

    python -m benchmarks.compare_alarms [rounds]

Each round launches the same Python three times in random order: as A, as A again, and with the timed bodies of the
payload repeated 1.25 times. Every series of rounds that one comparison would take (twice as many if the machine is not
quiet) is then assigned to two sides many times, and within a round A and A swap sides at random. The machine is used as
it is, with whatever else runs on it.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks._report import Figure, finish
from envkit.cli.console import reporter_for
from envkit.image.name import image_name
from envkit.run.host import HostRunner
from envkit.verify.compare.decide import Change, Launch, Rule, compare, overall
from envkit.verify.compare.launches import LAUNCH, REPEATS, Subject, gather, spoiled
from envkit.verify.compare.metrics import readings
from envkit.verify.compare.statistics import launches_for
from envkit.verify.driver import Options

ROUNDS = 20
CHECKS = ("C14",)
SLOWDOWN = 1.25
DRAWS = 40
"""How many times every series of rounds is assigned to two sides."""
_LOUD = (Change.REGRESSION, Change.IMPROVEMENT)

Records = Sequence[Mapping[str, Any]]


def main() -> int:
    """Run the benchmark; return 0 if both goals hold."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    plain = Subject(
        name="A", image=image_name("host"), runner=HostRunner(), options=Options(only=CHECKS, launch=LAUNCH)
    )
    slowed = replace(plain, options=replace(plain.options, launch={**LAUNCH, "body_factor": SLOWDOWN}))
    least = Rule.shipped().launches
    sides = gather([plain, plain, slowed], reporter_for("plain"), launches=rounds, seed=0, least=least, repeats=1)
    first, again, slow = ([readings(record) for record in side] for side in sides)
    size = max(least, launches_for(len(first[0])))
    if len(first) < REPEATS * size:
        raise SystemExit(f"a comparison takes {REPEATS * size} rounds on a machine that is not quiet")
    same, changed = changes(first, again, slow, size)
    print(f"{3 * rounds} launches, {size} and {size} in a comparison; CPU pressure {pressure(sides[0]):.2f} (median)")
    for name, counts in (("A against A", same), ("A against A slowed 1.25 times", changed)):
        print(f"{name}: " + ", ".join(f"{count} {change}" for change, count in counts.most_common()))
    total = same.total()
    naive = one_each([*sides[0], *sides[1]])
    return finish(
        "compare_alarms",
        [
            Figure(
                name="false alarms, nothing changed",
                figure=100 * sum(same[change] for change in _LOUD) / total,
                unit="%",
                better="lower",
                goal=5,
                against=f"{naive:.0f} % by one launch each, wall-clock median off by 10 % in any metric",
            ),
            Figure(
                name="slowdown of 25 % found",
                figure=100 * changed[Change.REGRESSION] / total,
                unit="%",
                better="higher",
                goal=90,
                against="the same launches with the timed bodies repeated",
            ),
        ],
    )


def changes(
    first: Sequence[Launch], again: Sequence[Launch], slow: Sequence[Launch], size: int
) -> tuple[Counter[Change], Counter[Change]]:
    """Count the verdicts on A against A, and on A against the slowed A."""
    order = random.Random(0)  # noqa: S311 - a schedule, not a secret
    same: Counter[Change] = Counter()
    changed: Counter[Change] = Counter()
    for start in range(len(first) - REPEATS * size + 1):
        series = [side[start : start + size] for side in (first, again, slow)]
        if spoiled(series, size):
            series = [side[start : start + REPEATS * size] for side in (first, again, slow)]
        for _ in range(DRAWS):
            pairs = [order.sample(pair, 2) for pair in zip(series[0], series[1], strict=True)]
            left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            rows = compare(left, right)
            loud = [row.change for row in rows if row.change in _LOUD]
            same[loud[0] if loud else overall(rows)] += 1
            changed[overall(compare(left, series[2]))] += 1
    return same, changed


def one_each(records: Records) -> float:
    """Return the percentage of pairs of single launches in which a wall-clock median differs by more than a tenth."""
    medians = [
        {check["id"]: median(check["samples"]["values"]) for check in record["checks"] if check["samples"]}
        for record in records
    ]
    alarms = [
        any(key in other and abs(other[key] / value - 1) > 0.10 for key, value in launch.items())
        for number, launch in enumerate(medians, 1)
        for other in medians[number:]
    ]
    return 100.0 * sum(alarms) / len(alarms)


def pressure(records: Records) -> float:
    """Return the median share of time in which some process waited for a CPU while a check was timed."""
    shares = [check["noise"]["psi_cpu_some"] for record in records for check in record["checks"] if check["noise"]]
    shares = [float(share) for share in shares if share is not None]
    return median(shares) if shares else 0.0


if __name__ == "__main__":
    sys.exit(main())
