"""Launches of images for a comparison: new processes, interleaved, in a random order from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, TimeLimitError, VerificationError
from envkit.verify.compare.metrics import CLEAN, readings
from envkit.verify.compare.statistics import launches_for
from envkit.verify.driver import verify_image
from envkit.verify.judge import check_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner
    from envkit.verify.compare.decide import Launch
    from envkit.verify.driver import Options

LAUNCH: Mapping[str, Any] = {"threads": 1, "effort": 4}
"""How the payload runs here. Threads spin while they wait for each other, which dominates on a busy machine, so there
is one. With more samples, more of them are undisturbed."""
REPEATS = 2
"""Limit of launches per side, as a multiple of the requested number, if noise spoils some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One image, how to run it, and its plan."""

    name: str
    image: ImageName
    runner: Runner
    options: Options
    plan: BuildPlan | None = None


def launch(subject: Subject, reporter: Reporter) -> Mapping[str, Any]:
    """Launch an image once and return the record.

    Raises:
        VerificationError: the payload failed in this image.
        EngineError, EnvironmentProblem, TimeLimitError: the payload could not run, or ran too long.
    """
    record = verify_image(subject.image, subject.plan, subject.runner, reporter, subject.options)
    trouble = record.tree["run"]["trouble"]
    if trouble is not None:
        kinds: dict[int, type[EnvkitError]] = {
            kind.exit_code: kind for kind in (EngineError, EnvironmentProblem, TimeLimitError)
        }
        message = f"{subject.name} cannot be compared: {trouble['reason']['message']}"
        raise kinds.get(trouble["exit_code"], VerificationError)(message, hint=f"envkit verify {subject.name}")
    return record.tree


def gather(
    subjects: Sequence[Subject],
    reporter: Reporter,
    *,
    launches: int | None,
    seed: int,
    least: int,
    repeats: int = REPEATS,
    keep: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    """Launch every subject `launches` times and return the records of each, in the order of `subjects`.

    The first launch of each is discarded: it warms caches and shows which checks are timed; only those run afterwards.
    Without `launches` there are as many as the number of metrics requires, and at least `least`. If launches are noisy,
    more rounds follow, up to `repeats` times as many; `compare` then uses the quieter ones. `keep` is called with the
    subject's index and each record that counts.

    Raises:
        VerificationError: an image does not run, or nothing in it is timed.
    """
    reporter.step("warm up")
    first = [readings(launch(subject, reporter)) for subject in subjects]
    keys = set.union(*(set(metrics) for metrics in first))
    if not keys:
        raise VerificationError(
            "no check that ran is timed, so there is nothing to compare", hint="envkit verify --list"
        )
    checks = tuple(sorted({check_of(key) for key in keys}))
    timed = [replace(item, options=replace(item.options, only=checks, skip=())) for item in subjects]
    wanted = launches or max(least, launches_for(len(keys)))
    order = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    records: list[list[Mapping[str, Any]]] = [[] for _ in subjects]
    rounds = 0
    while rounds < wanted or (
        rounds < repeats * wanted and spoiled([[readings(record) for record in side] for side in records], wanted)
    ):
        rounds += 1
        more = "" if rounds <= wanted else ", because the machine was busy"
        reporter.step(f"launch {rounds} of {wanted if rounds <= wanted else repeats * wanted} per side{more}")
        # A new order in each round, so that drift of the machine favors no side.
        for index in order.sample(range(len(timed)), len(timed)):
            record = launch(timed[index], reporter)
            if keep is not None:
                keep(index, record)
            records[index].append(record)
    return tuple(tuple(side) for side in records)


def spoiled(sides: Sequence[Sequence[Launch]], wanted: int) -> bool:
    """Whether any metric has fewer than `wanted` quiet launches on a side."""
    for side in sides:
        for key in {key for launched in side for key in launched}:
            if sum(launched[key].gate == CLEAN for launched in side if key in launched) < wanted:
                return True
    return False
