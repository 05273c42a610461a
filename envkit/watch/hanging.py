"""Ranks that wait for one that does not come: within each step, or for ever after their last one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from envkit.watch.doing import Doing
from envkit.watch.measures import named, own_s
from envkit.watch.model import WARM_UP, Process, Record

_LEAST_S = 5.0  # a shorter pause may be a checkpoint of another rank
_LEAST_STEPS = 20  # the same, in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One rank that waited after its last step, and the one that did not come."""

    rank: str
    steps: int
    seconds: float
    where: str  # in the program, "" if unknown
    other: str
    other_steps: int
    other_doing: str  # what the other did last, "" if unknown
    other_where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The slowest rank, and how long the fastest waits for it in each step."""

    rank: str
    seconds: float  # of a step for its own work
    fastest: str
    fastest_s: float
    share: float  # of the step in which the fastest waits
    mean_s: float  # of all ranks for their own work


def hanging(record: Record) -> Wait | None:
    """Return which rank waited longest after its last step, and for whom; None unless one did and another did not."""
    ranks = record.ranks
    waited = sorted(((_waited(process), process) for process in ranks), key=lambda one: -one[0])
    if len(ranks) < 2 or not all(_shares(process) for process in ranks):  # noqa: PLR2004 - one rank alone
        return None
    seconds, first = waited[0]
    if not first.steps or seconds < max(_LEAST_S, _LEAST_STEPS * first.seconds / first.steps):
        return None
    # The one that is waited for does not wait in a collective itself, and came least far.
    others = [process for spent, process in waited[1:] if spent < seconds / 2]
    if not others:
        return None
    other = min(others, key=lambda process: (process.steps, process.end_s or 0.0))
    last = next((one for one in other.after_activities if one.kind != Doing.TIMED), None)
    where = next((one.where for one in first.after_activities if one.kind == Doing.TIMED), "")
    return Wait(
        rank=named(first),
        steps=first.steps + WARM_UP,
        seconds=seconds,
        where=where,
        other=named(other),
        other_steps=other.steps + WARM_UP,
        other_doing="" if last is None else last.kind,
        other_where="" if last is None else last.where,
    )


def straggler(record: Record) -> Straggler | None:
    """Return the slowest rank of several, None without several that wait for each other."""
    ranks = record.ranks
    if len(ranks) < 2 or not all(_shares(process) for process in ranks):  # noqa: PLR2004 - one rank alone
        return None
    own = sorted((own_s(process), named(process)) for process in ranks)
    step_s = sum(process.seconds for process in ranks) / sum(process.steps for process in ranks)
    (fastest_s, fastest), (slowest_s, slowest) = own[0], own[-1]
    return Straggler(
        rank=slowest,
        seconds=slowest_s,
        fastest=fastest,
        fastest_s=fastest_s,
        share=min(1.0, (slowest_s - fastest_s) / step_s) if step_s else 0.0,
        mean_s=sum(seconds for seconds, _ in own) / len(own),
    )


def _shares(process: Process) -> bool:
    """Whether a process has collectives with others."""
    return bool(process.total("collective").count or process.total("ddp").count or process.world_size > 1)


def _waited(process: Process) -> float:
    """Return the seconds of the longest call after the last step in which a rank waits for others.

    A call that never ended wrote no event: looks at the thread have it.
    """
    calls = [total.longest_s for kind, total in process.after.items() if kind in ("backward", "collective", "sync")]
    looks = [one.seconds for one in process.after_activities if one.kind in (Doing.TIMED, Doing.RANKS)]
    return max([*calls, *looks], default=0.0)
