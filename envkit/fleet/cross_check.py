"""Cross-check: another worker builds some images again; equal plans and locks have to give equal digests.

A difference means that one machine's state got into an image: a damaged cache, another version of a tool, or a bug.
Each image alone looks sound, so no other check finds that. Images are pushed by digest first and tagged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

from envkit.fleet import build_task
from envkit.fleet.cluster import Machine, Placement
from envkit.fleet.model import BuildTask, Outcome, TagTask
from envkit.fleet.schedule import Step
from envkit.ground.errors import IntegrityError

CHECKED = "cross_checked"  # among an outcome's figures: 1 where a second worker gave the same digest
_MARK = " (again)"
_REPRODUCIBLE = "embedded"


def is_second(name: str) -> bool:
    """Whether a task of this name is the second build of an image."""
    return name.endswith(_MARK)


@dataclass(slots=True, kw_only=True)
class CrossCheck:
    """Has the first images of a run built again by another worker before they get their tags.

    Args:
        share: how many; None = all.
        machines: the workers.
        note: receives one line for each image.
        executor: who works.
    """

    share: int | None
    machines: Sequence[Machine]
    note: Callable[[str], None]
    executor: Executor
    _first: dict[str, Outcome] = field(default_factory=dict)

    def held(self, tasks: Iterable[BuildTask | Outcome]) -> Iterator[BuildTask | Outcome]:
        """The same tasks; while images may yet be built twice, they are to be built without tags."""
        for task in tasks:
            hold = isinstance(task, BuildTask) and self._says_something(task) and self._is_wanted()
            yield replace(task, hold=True) if isinstance(task, BuildTask) and hold else task

    def then(self, task: BuildTask, first: Outcome) -> Outcome | Step:
        """What comes after a first build: a second one by another worker where that is wanted, then the tags."""
        if first.held is None:
            return first
        if not self._is_wanted() or not self._others(first.worker):
            return self._tags(task, first)
        self._first[task.name] = first
        second = self.executor.submit(build_task.build, again(task, shared=self._shared(first.worker)))
        return Step(future=second, then=partial(self._compared, task, first))

    def place(self, task: BuildTask | TagTask) -> Placement | None:
        """Where a second build may run: on every worker but the first one's. Tags go first; None for first builds."""
        if isinstance(task, TagTask):
            return Placement(priority=1)
        first = self._first.get(task.name.removesuffix(_MARK)) if is_second(task.name) else None
        if first is None:
            return None
        return Placement(workers=tuple(machine.address for machine in self._others(first.worker)), strict=True)

    def _compared(self, task: BuildTask, first: Outcome, second: Outcome) -> Outcome | Step:
        if second.digest is None:
            self.note(f"{first.name} was not cross-checked: {second.error} (on {second.worker})")
            return self._tags(task, first)
        outcome = compared(first, second)
        if outcome.exit_code:
            return outcome
        self.note(f"{first.name}: {first.worker} and {second.worker} built the same {first.digest}")
        return self._tags(task, outcome)

    def _tags(self, task: BuildTask, built: Outcome) -> Step:
        asked = TagTask(name=task.name, build=task, digest=str(built.digest), own_tag=str(built.held))
        return Step(future=self.executor.submit(build_task.tag, asked), then=partial(_tagged, built))

    def _says_something(self, task: BuildTask) -> bool:
        return task.engine == _REPRODUCIBLE and task.lock is not None and len(self.machines) > 1

    def _is_wanted(self) -> bool:
        return self.share is None or len(self._first) < self.share

    def _others(self, worker: str) -> list[Machine]:
        """Every worker but one; of these the ones with caches of their own, where there are any."""
        own = {machine.cache for machine in self.machines if machine.name == worker}
        others = [machine for machine in self.machines if machine.name != worker]
        return [machine for machine in others if machine.cache not in own] or others

    def _shared(self, worker: str) -> bool:
        """Whether every other worker has the caches of this one."""
        own = {machine.cache for machine in self.machines if machine.name == worker}
        return all(machine.cache in own for machine in self._others(worker))


def again(task: BuildTask, *, shared: bool = False) -> BuildTask:
    """Return the same build for its digest only: not sent and not verified. With `shared` caches, nothing is reused."""
    dropped = ("replace_tag", "mount_from", "allow_cpu")
    options = {key: value for key, value in task.options.items() if key not in dropped}
    return replace(
        task,
        name=task.name + _MARK,
        output=None,
        tags=(f"cross-check/{task.name}:latest",),
        verify=False,
        hold=False,
        options=options | ({"no_cache": True} if shared else {}),
    )


def compared(first: Outcome, second: Outcome) -> Outcome:
    """Return the outcome of an image that two workers built: unchanged if the digests agree, else a failure."""
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
        status=build_task.FAILED,
        exit_code=fault.exit_code,
        error=fault.message,
        hint=fault.hint,
        details=fault.details,
        held=None,
    )


def _tagged(built: Outcome, ended: Outcome) -> Outcome:
    """The outcome of a build after its tags were set, or were not."""
    if ended.exit_code == 0:
        return replace(built, held=None)
    return replace(
        built,
        status=ended.status,
        exit_code=ended.exit_code,
        error=ended.error,
        hint=ended.hint,
        details=ended.details,
        held=None,
    )
