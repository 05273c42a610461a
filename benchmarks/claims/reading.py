"""The figure of a claim in a record: parts with their spread, or why a number is missing. Nothing is estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.checks.reading import check_of, is_number, mapping, sequence

Tree = Mapping[str, Any]
# Reason codes that all mean that the payload saw no GPU.
NO_GPU = {"NO_GPU", "CPU_BUILD", "NO_DRIVER"}
_LEFT_OUT = "NOT_SELECTED"
_UNTRUSTED = {"ERROR", "INCONCLUSIVE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One number of a figure.

    `spread` is the middle half of its samples; for the effect of a loader's option it is the range of its pairs.
    `claimed` is False if the claim is not about this part, which is shown for comparison. Without a value, `why` says
    what is missing.
    """

    label: str
    value: float | None = None
    unit: str = "x"  # 'x': times as fast or as much; 'share'; or a unit's name
    spread: tuple[float, float] | None = None
    claimed: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A record's answer to a claim: parts, or the reason why there are none.

    `absent` says that the record's run left the checks out, so another record of the machine may have them.
    """

    parts: tuple[Part, ...]
    why: str = ""
    absent: bool = False


class Findings:
    """The findings of a record."""

    def __init__(self, record: Tree) -> None:
        self.record = record
        self.every: Sequence[Tree] = sequence(record["checks"])

    def like(self, prefix: str) -> Iterator[Tree]:
        """Yield the findings that ran and whose ID begins with `prefix`, in the order of the record."""
        return (item for item in self.every if str(item["id"]).startswith(prefix) and item["status"] == "ran")

    def answer(self, checks: Sequence[str], figure: Callable[[Findings], Iterator[Part]]) -> Answer:
        """Return the figure of a claim that `checks` measure."""
        parts = tuple(figure(self))
        if parts:
            return Answer(parts)
        matching = [item for item in self.every if check_of(item["id"]) in checks and item["reason_code"] != _LEFT_OUT]
        if not matching:
            return Answer((), f"not in this record: {', '.join(checks)} did not run", absent=True)
        return Answer((), self._missing(checks, matching))

    def _missing(self, checks: Sequence[str], matching: Sequence[Tree]) -> str:
        reasons = [item for item in matching if item["status"] != "ran"]
        if any(item["reason_code"] in NO_GPU for item in reasons):
            return "not measured: no GPU"
        if reasons:
            return f"not measured: {reasons[0]['message']}"
        return f"not measured: {', '.join(checks)} ran without this figure"


def doubt(*findings: Tree) -> str:
    """Return why the numbers of these findings cannot be used, '' if they can."""
    for item in findings:
        gate = mapping(item["noise"]).get("gate", "clean")
        if gate != "clean":
            return f"inconclusive: {gate}"
        if item["verdict"] in _UNTRUSTED:
            return f"inconclusive: {item['message']}"
    return ""


def ratio(slow: Tree, fast: Tree) -> tuple[float, tuple[float, float]] | None:
    """Return how many times as fast `fast` is, and the range of that, from the medians and quartiles of both."""
    slower, faster = mapping(slow["stats"]), mapping(fast["stats"])
    names = ("median", "p25", "p75")
    if not all(is_number(stats.get(name)) and stats[name] > 0 for stats in (slower, faster) for name in names):
        return None
    middle = slower["median"] / faster["median"]
    return middle, (slower["p25"] / faster["p75"], slower["p75"] / faster["p25"])


def around(value: float, stats: Any, *, inverse: bool = False) -> tuple[float, float] | None:
    """Return the quartiles of a value that is proportional to the samples of `stats`, or inverse to them."""
    tree = mapping(stats)
    middle, low, high = tree.get("median"), tree.get("p25"), tree.get("p75")
    if not (is_number(middle) and is_number(low) and is_number(high)) or min(middle, low, high) <= 0:
        return None
    return (value * middle / high, value * middle / low) if inverse else (value * low / middle, value * high / middle)
