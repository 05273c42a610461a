"""Builds on a cluster: placed by cached layers, retried when a worker is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from envkit.engines.model import BuildOptions
from envkit.fleet import schedule
from envkit.fleet.cluster import Affinity, Placement, check_output, require_engine
from envkit.fleet.dask_pool import DaskPool, Event
from envkit.fleet.model import BuildTask, Outcome
from envkit.ground.paths import state_dir
from envkit.plan.store import plan_from_json, store_plan


class ClusterRun:
    """A connection for one fleet of builds; a context manager that cancels remaining work on an exception.

    Args:
        address: of the scheduler.
        engine: the engine of every image.
        options: of every image.
        note: receives remarks; called from any thread.
        on_event: receives the progress events of tasks; called from any thread.

    Raises:
        UsageError: the address is invalid, or the output is not in a registry.
        EnvironmentProblem: the cluster does not answer, has no worker for the engine, or has other versions.
    """

    def __init__(
        self,
        address: str,
        *,
        engine: str,
        options: BuildOptions,
        note: Callable[[str], None],
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        check_output(options)
        self._pool = DaskPool(address, place=self._place, note=note, on_event=on_event)
        try:
            require_engine(engine, self._pool.machines, address)
        except BaseException:
            self._pool.stop()  # an exception here means that `__exit__` is never called
            raise
        self._affinity = Affinity(self._pool.machines)
        self.started = self._pool.warm()  # starts processes while the first locks are being solved
        machines = self._pool.machines
        threads, names = sum(machine.threads for machine in machines), ", ".join(machine.name for machine in machines)
        note(f"{threads} parallel builds on {len(machines)} workers: {names}")
        if self._pool.dashboard:
            note(f"dashboard: {self._pool.dashboard}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._pool.__exit__(kind, error, trace)

    def run(self, tasks: Iterable[BuildTask | Outcome], on_outcome: Callable[[Outcome], None]) -> tuple[Outcome, ...]:
        """Run the tasks as `schedule.run` does.

        Raises:
            BaseException: this thread was ended; leaving the context cancels the work.
        """
        return schedule.run(_kept(tasks), self._pool, on_outcome)

    def _place(self, task: Any) -> Placement:
        return self._affinity.place(task)


def _kept(tasks: Iterable[BuildTask | Outcome]) -> Iterator[BuildTask | Outcome]:
    """Yield the tasks, and save their plans on this machine, where `envkit verify` looks for them."""
    for task in tasks:
        if isinstance(task, BuildTask):
            # The build does not need the saved plan.
            with contextlib.suppress(OSError):
                store_plan(state_dir(), plan_from_json(json.loads(task.plan), f"the plan of {task.name}"))
        yield task
