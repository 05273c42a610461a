"""Builds on a cluster: each where it shares most, lost ones again elsewhere, a share of them twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from envkit.fleet import schedule
from envkit.fleet.cluster import Affinity, Placement, check_output, require_engine
from envkit.fleet.cross_check import CrossCheck, is_second
from envkit.fleet.dask_pool import DaskPool, Event
from envkit.fleet.model import BuildTask, Outcome
from envkit.ground.paths import state_dir
from envkit.plan.store import plan_from_json, store_plan


class ClusterRun:
    """A connection for one fleet of builds; a context manager that ends what is left when an exception passes.

    Args:
        address: of the scheduler.
        engine: that builds every image.
        output: as `--output` has it.
        share: how many images are built twice; None = all.
        note: hears remarks, called from any thread.
        heard: hears what tasks tell while they run, called from any thread.

    Raises:
        UsageError: the address is invalid, or the output is not in a registry.
        EnvironmentProblem: the cluster does not answer, has no worker for the engine, or has other versions.
    """

    def __init__(
        self,
        address: str,
        *,
        engine: str,
        output: str | None,
        share: int | None,
        note: Callable[[str], None],
        heard: Callable[[Event], None] | None = None,
    ) -> None:
        check_output(output)
        self._pool = DaskPool(address, place=self._place, note=note, heard=None if heard is None else _firsts(heard))
        try:
            require_engine(engine, self._pool.machines, address)
        except BaseException:
            self._pool.stop()
            raise
        self._affinity = Affinity(self._pool.machines)
        self._twice = CrossCheck(share=share, machines=self._pool.machines, note=note, executor=self._pool)
        # While the first locks are being solved.
        self.started = self._pool.warm()
        machines = self._pool.machines
        threads, names = sum(machine.threads for machine in machines), ", ".join(machine.name for machine in machines)
        note(f"{threads} parallel builds on {len(machines)} workers: {names}")
        if self._pool.dashboard:
            note(f"dashboard: {self._pool.dashboard}")
        if share != 0 and len(machines) == 1:
            note("only one worker: no image is built twice, so digests are not cross-checked")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._pool.__exit__(kind, error, trace)

    def run(self, tasks: Iterable[BuildTask | Outcome], heard: Callable[[Outcome], None]) -> tuple[Outcome, ...]:
        """As `schedule.run`; what is built twice is compared before it gets its tags.

        Raises:
            BaseException: what ends this thread; leaving the context cancels the work.
        """
        return schedule.run(self._twice.held(_kept(tasks)), self._pool, heard, then=self._twice.then)

    def _place(self, task: Any) -> Placement:
        return self._twice.place(task) or self._affinity.place(task)


def _kept(tasks: Iterable[BuildTask | Outcome]) -> Iterator[BuildTask | Outcome]:
    """The same tasks; their plans are kept here as those of local builds are, so that `envkit verify` finds them."""
    for task in tasks:
        if isinstance(task, BuildTask):
            with contextlib.suppress(OSError):
                store_plan(state_dir(), plan_from_json(json.loads(task.plan), f"the plan of {task.name}"))
        yield task


def _firsts(heard: Callable[[Event], None]) -> Callable[[Event], None]:
    """Leave out events of second builds, which would look like further images."""
    return lambda event: None if is_second(event[0]) else heard(event)
