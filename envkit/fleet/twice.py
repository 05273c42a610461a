"""Some images built a second time by another worker: the same plan and lock have to give the same digest.

A difference means that something of one machine got into an image: a damaged cache, another version of a tool, or a
fault of envkit. Nobody would notice otherwise, since each image for itself is sound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field, replace

from envkit.errors import IntegrityError
from envkit.fleet import work
from envkit.fleet.cluster import Machine, Placement
from envkit.fleet.model import BuildTask, Outcome
from envkit.fleet.schedule import outcome_of

CHECKED = "cross_checked"  # among an outcome's figures: 1 where a second worker gave the same digest
_MARK = " (again)"
_LOOK_S = 0.5
_REPRODUCIBLE = "embedded"


def is_second(name: str) -> bool:
    """Whether a task of this name is the second build of an image."""
    return name.endswith(_MARK)


@dataclass(slots=True, kw_only=True)
class Twice:
    """Watches a run, and has the first images that were built in it built once more.

    Args:
        share: how many; None = all.
        machines: the workers.
        note: hears what came of it, a line for each.
    """

    share: int | None
    machines: Sequence[Machine]
    note: Callable[[str], None]
    executor: Executor | None = None
    _tasks: dict[str, BuildTask] = field(default_factory=dict)
    _first: dict[str, Outcome] = field(default_factory=dict)
    _second: dict[str, Future[Outcome]] = field(default_factory=dict)

    def watch(self, tasks: Iterable[BuildTask | Outcome]) -> Iterator[BuildTask | Outcome]:
        """The same tasks, remembered."""
        for task in tasks:
            if isinstance(task, BuildTask):
                self._tasks[task.name] = task
            yield task

    def heard(self, outcome: Outcome) -> None:
        """Give an image that was just built to another worker; called in the thread that submits."""
        task = self._tasks.get(outcome.name)
        if task is None or self.executor is None or not self._wanted(task, outcome):
            return
        self._first[outcome.name] = outcome
        self._second[outcome.name] = self.executor.submit(work.build, again(task, shared=self._shared(outcome.worker)))

    def place(self, task: BuildTask) -> Placement | None:
        """Where a second build may run: on every worker but the first one's; None for first builds."""
        first = self._first.get(task.name.removesuffix(_MARK)) if is_second(task.name) else None
        if first is None:
            return None
        return Placement(workers=tuple(one.address for one in self._others(first.worker)), strict=True)

    def settle(self, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
        """Wait for the second builds, and compare: an image whose digests differ has failed."""
        began = time.monotonic()
        while left := [one for one in self._second.values() if not one.done()]:
            wait(left, timeout=_LOOK_S)  # so soon a signal reaches this thread
        if self._second and time.monotonic() - began > 1:
            self.note(f"{len(self._second)} images built twice, {time.monotonic() - began:.0f} s longer")
        return tuple(self._compared(one) if one.name in self._second else one for one in outcomes)

    def _compared(self, first: Outcome) -> Outcome:
        future = self._second[first.name]
        second = outcome_of(again(self._tasks[first.name]), future)
        if second.digest is None:
            self.note(f"{first.name} was not built twice: {second.error} (on {second.worker})")
            return first
        found = compared(first, second)
        if found.exit_code == first.exit_code:
            self.note(f"{first.name}: {first.worker} and {second.worker} built the same {first.digest}")
        return found

    def _wanted(self, task: BuildTask, outcome: Outcome) -> bool:
        if outcome.status != work.BUILT or task.engine != _REPRODUCIBLE or task.lock is None:
            return False
        if self.share is not None and len(self._second) >= self.share:
            return False
        return bool(self._others(outcome.worker))

    def _others(self, worker: str) -> list[Machine]:
        """Every worker but one; of these the ones with caches of their own, where there are any."""
        own = {one.cache for one in self.machines if one.name == worker}
        others = [one for one in self.machines if one.name != worker]
        return [one for one in others if one.cache not in own] or others

    def _shared(self, worker: str) -> bool:
        """Whether every other worker has the caches of this one."""
        own = {one.cache for one in self.machines if one.name == worker}
        return all(one.cache in own for one in self._others(worker))


def again(task: BuildTask, *, shared: bool = False) -> BuildTask:
    """The same build for its digest alone: sent nowhere and proved by nobody. From `shared` caches nothing is taken."""
    dropped = ("replace_tag", "mount_from", "allow_cpu")
    options = {key: value for key, value in task.options.items() if key not in dropped}
    return replace(
        task,
        name=task.name + _MARK,
        output=None,
        tags=(f"cross-check/{task.name}:latest",),
        verify=False,
        options=options | ({"no_cache": True} if shared else {}),
    )


def compared(first: Outcome, second: Outcome) -> Outcome:
    """The outcome of an image that two workers built: as it was where the digests agree, else a failure."""
    if first.digest == second.digest:
        return replace(first, figures={**first.figures, CHECKED: 1.0})
    fault = IntegrityError(
        f"{first.name}: {first.worker} built {first.digest} and {second.worker} built {second.digest} of the same plan "
        "and lock",
        hint="envkit cache prune --all on both and again; if it repeats, envkit diff of both images shows where",
        details=(f"on {first.worker}: {first.place}", f"on {second.worker}: {second.place}"),
    )
    return replace(
        first,
        status=work.FAILED,
        exit_code=fault.exit_code,
        error=fault.message,
        hint=fault.hint,
        details=fault.details,
    )
