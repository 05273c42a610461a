"""Cross-check: build some images again on another worker; equal plans and locks must give equal digests.

A difference means that the state of one machine leaked into an image: a damaged cache, another version of a tool, or a
bug. Each image alone may pass verification, so no other check finds that. Images are pushed by digest first and tagged
only after the comparison.
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

CHECKED = "cross_checked"  # a figure of an outcome: 1 if a second worker built the same digest
_MARK = " (again)"
_REPRODUCIBLE = "embedded"  # with other engines, equal inputs do not give equal digests


def is_second(name: str) -> bool:
    """Return whether a task with this name is the second build of an image."""
    return name.endswith(_MARK)


@dataclass(slots=True, kw_only=True)
class CrossCheck:
    """Builds the first images of a run again on another worker before they are tagged.

    Args:
        share: the number of images; None = all.
        machines: the workers.
        note: receives one line for each image.
        executor: runs the second builds.
    """

    share: int | None
    machines: Sequence[Machine]
    note: Callable[[str], None]
    executor: Executor
    _first: dict[str, Outcome] = field(default_factory=dict)

    def without_tags(self, tasks: Iterable[BuildTask | Outcome]) -> Iterator[BuildTask | Outcome]:
        """Yield the tasks; those that may be built twice are not to set their tags (`BuildTask.hold`)."""
        for task in tasks:
            # These may be more than are built twice, because no first build may have ended yet; `then` tags the others.
            hold = isinstance(task, BuildTask) and self._is_comparable(task) and self._is_wanted()
            yield replace(task, hold=True) if isinstance(task, BuildTask) and hold else task

    def then(self, task: BuildTask, first: Outcome) -> Outcome | Step:
        """Continue after a first build: a second one on another worker if wanted, then the tags."""
        if first.held is None:
            return first
        if not self._is_wanted() or not self._others(first.worker):
            return self._tags(task, first)
        self._first[task.name] = first
        second = self.executor.submit(build_task.build, second_build(task, shared=self._shared(first.worker)))
        return Step(future=second, then=partial(self._compared, task, first))

    def place(self, task: BuildTask | TagTask) -> Placement | None:
        """Return where a second build may run: on any worker but the first one. Tags have priority; None for others."""
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
        tag_task = TagTask(name=task.name, build=task, digest=str(built.digest), own_tag=str(built.held))
        return Step(future=self.executor.submit(build_task.tag, tag_task), then=partial(_tagged, built))

    def _is_comparable(self, task: BuildTask) -> bool:
        return task.engine == _REPRODUCIBLE and task.lock is not None and len(self.machines) > 1

    def _is_wanted(self) -> bool:
        return self.share is None or len(self._first) < self.share

    def _others(self, worker: str) -> list[Machine]:
        """Return the other workers; only those with another cache, if there are any."""
        # Outcomes of a cluster have the worker's name in place of `host:pid` (`dask_pool._on_worker`).
        own = {machine.cache for machine in self.machines if machine.name == worker}
        others = [machine for machine in self.machines if machine.name != worker]
        return [machine for machine in others if machine.cache not in own] or others

    def _shared(self, worker: str) -> bool:
        """Return whether every other worker shares this one's cache."""
        own = {machine.cache for machine in self.machines if machine.name == worker}
        return all(machine.cache in own for machine in self._others(worker))


def second_build(task: BuildTask, *, shared: bool = False) -> BuildTask:
    """Return the same build without push and verification. With a `shared` cache, it must not use cached layers."""
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
        hint="envkit cache prune --all on both, then build again; if it repeats, compare the images with envkit diff",
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
    """Return the outcome of a build with the result of setting its tags."""
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
