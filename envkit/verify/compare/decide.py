"""One verdict per metric, from the launches of two sides. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.verify.compare.metrics import CLEAN
from envkit.verify.compare.statistics import Interval, holm, mann_whitney, ratio, relative_mad, smallest_p

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.verify.compare.metrics import Reading

Launch = dict[str, "Reading"]
"""The metrics of one launch by key."""


class Change(StrEnum):
    """The verdict on the second side compared with the first."""

    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a difference counts; see `compare.launches` in thresholds.yaml for the sources."""

    least_effect: float
    mads: float
    level: float
    resolution: float
    launches: int

    @classmethod
    def shipped(cls) -> Rule:
        """Return the rule in force."""
        row = thresholds.load().row("compare.launches")
        numbers = {name: row.number(name) for name in ("least_effect", "mads", "level", "resolution")}
        return cls(**numbers, launches=int(row.number("launches")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric. `interval` is of second / first; `p` is exact, `p_holm` is adjusted over all metrics."""

    key: str
    name: str
    unit: str
    better: str
    clock: str
    change: Change
    reason: str
    first: tuple[float, ...]
    second: tuple[float, ...]
    left_out: int  # launches in which the machine was too busy
    interval: Interval | None = None
    p: float | None = None
    p_holm: float | None = None
    least: float | None = None  # the smallest relevant change, as a share

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {**asdict(self), "change": str(self.change), "first": list(self.first), "second": list(self.second)}


def compare(first: Sequence[Launch], second: Sequence[Launch], rule: Rule | None = None) -> tuple[Row, ...]:
    """Compare two sides metric by metric, in the order of the metrics in the launches.

    A difference counts if the exact Mann-Whitney p-value, adjusted by Holm over all metrics, is at most the level, and
    the change exceeds both a tenth and three relative MADs of the first side. The verdict is SAME only if the interval
    excludes such a change and the noise was low enough to notice one. Everything else is INCONCLUSIVE, with the reason.
    """
    used = rule or Rule.shipped()
    keys = list(dict.fromkeys(key for launch in (*first, *second) for key in launch))
    sides = {key: (_values(first, key, used.launches), _values(second, key, used.launches)) for key in keys}
    tested = [key for key in keys if min(map(len, sides[key])) >= used.launches]
    p_values = {key: mann_whitney(*sides[key]) for key in tested}
    adjusted = dict(zip(tested, holm([p_values[key] for key in tested]), strict=True))
    rows = []
    for key in keys:
        sample = next(launch[key] for launch in (*first, *second) if key in launch)
        left_out = sum(key in launch for launch in (*first, *second)) - sum(map(len, sides[key]))
        known: dict[str, Any] = {
            "key": key,
            "name": sample.name,
            "unit": sample.unit,
            "better": sample.better,
            "clock": sample.clock,
            "first": tuple(sides[key][0]),
            "second": tuple(sides[key][1]),
            "left_out": left_out,
        }
        if key in adjusted:
            rows.append(_tested(known, p_values[key], adjusted[key], len(tested), used))
        else:
            rows.append(Row(**known, change=Change.INCONCLUSIVE, reason=_too_few(sides[key], left_out, used)))
    return tuple(rows)


def overall(rows: Sequence[Row]) -> Change:
    """Return the most severe verdict of all rows; INCONCLUSIVE without rows. IMPROVEMENT wins over SAME."""
    changes = {row.change for row in rows}
    order = (Change.REGRESSION, Change.INCONCLUSIVE, Change.IMPROVEMENT, Change.SAME)
    return next((change for change in order if change in changes), Change.INCONCLUSIVE)


def _values(launches: Sequence[Launch], key: str, least: int) -> list[float]:
    """Return the usable values: wall times of quiet launches; CPU times of at least the quieter half of all launches.

    Launches are selected by the CPU pressure while they ran, never by their values.
    """
    readings = [launch[key] for launch in launches if key in launch]
    quiet = sum(item.gate == CLEAN for item in readings)
    if all(item.clock == "cpu" for item in readings):
        kept = max(quiet, (len(readings) + 1) // 2, least)
        return [item.value for item in sorted(readings, key=lambda item: (item.gate != CLEAN, item.pressure))[:kept]]
    return [item.value for item in readings if item.gate == CLEAN]


def _too_few(sides: tuple[list[float], list[float]], left_out: int, rule: Rule) -> str:
    counts = " and ".join(map(str, map(len, sides)))
    noise = f"; {left_out} were left out because the machine was busy" if left_out else ""
    return f"{counts} launches are usable, {rule.launches} per side are needed{noise}"


def _tested(known: Mapping[str, Any], p: float, p_holm: float, metrics: int, rule: Rule) -> Row:
    first, second = known["first"], known["second"]
    interval = ratio(first, second)
    least = max(rule.least_effect, rule.mads * relative_mad(first))
    slower = interval if known["better"] == "lower" else _inverted(interval)
    change, reason = _change(slower, p_holm, least, smallest_p(len(first), len(second)) * metrics, rule)
    return Row(**known, change=change, reason=reason, interval=interval, p=p, p_holm=p_holm, least=least)


def _change(slower: Interval, p_holm: float, least: float, reachable: float, rule: Rule) -> tuple[Change, str]:
    """Return the verdict and its reason.

    `slower` is the interval in which larger is worse; `reachable` is the smallest possible adjusted p.
    """
    limit = f"a change of {least:.0%} or more counts"
    if p_holm <= rule.level and slower.estimate > 1 + least:
        return Change.REGRESSION, f"p {p_holm:.3f}; {limit}"
    # The inverse of the limit above, so that exchanging the sides exchanges the verdicts.
    if p_holm <= rule.level and slower.estimate < 1 / (1 + least):
        return Change.IMPROVEMENT, f"p {p_holm:.3f}; {limit}"
    # From here on no difference counts. SAME is only for launches that could have shown one.
    if reachable > rule.level:
        return Change.INCONCLUSIVE, f"with so few launches, p cannot be below {reachable:.3f}; use more with --launches"
    if least > rule.resolution:
        return Change.INCONCLUSIVE, f"too noisy: only a change above {least:.0%} would be noticed"
    if slower.high > 1 + least:
        return Change.INCONCLUSIVE, f"the interval includes more than {least:.0%} worse; use more launches"
    return Change.SAME, limit


def _inverted(interval: Interval) -> Interval:
    # The inverse of the upper end is the lower end.
    return Interval(1 / interval.estimate, 1 / interval.high, 1 / interval.low, interval.confidence)
