"""Many builds, on this machine or on a cluster: tasks with their locks go in, outcomes come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from envkit.assemble.builders import EMBEDDED, choose
from envkit.fleet import schedule
from envkit.fleet.cluster import check_address, check_output, parse_share
from envkit.fleet.schedule import failed
from envkit.fleet.state import LastRun, digest_of
from envkit.fleet.tasks import in_order, task_of
from envkit.ground.errors import Ending, EnvkitError, InterruptedRun
from envkit.ground.paths import cache_dir, state_dir
from envkit.ground.progress import Silent, counted
from envkit.lock.store import to_text

if TYPE_CHECKING:
    from envkit.build.model import BuildOptions
    from envkit.fleet.cells import Expanded
    from envkit.fleet.local import Event
    from envkit.fleet.model import BuildTask, Cell, Outcome
    from envkit.ground.settings import Settings
    from envkit.pipeline.locking import Locks

    Run = Callable[[Iterable[BuildTask | Outcome], Callable[[Outcome], None]], object]

_CROSS_CHECKED = "1"  # image of a fleet that two workers build, unless --cross-check says otherwise
_NOTHING = "no image of an earlier run with these images and flags was found; building all"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """Which images to build, and how."""

    found: Expanded
    where: str  # what named the images
    settings: Settings
    options: BuildOptions
    engine: str  # as `engine_name` returned it
    verify: bool = True
    no_lock: bool = False
    allow_cpu: bool = False
    jobs: int | None = None  # parallel builds on this machine; None = as many as fit
    resume: bool = False
    scheduler: str | None = None  # None = this machine
    cross_check: str | None = None  # 'all' or a number

    def check(self) -> None:
        """Refuse what cannot be built on a cluster, before anything begins.

        Raises:
            UsageError: the address, the output or the share is invalid.
        """
        if self.scheduler is not None:
            check_address(self.scheduler)
            check_output(self.options.output)
            parse_share(self.cross_check or _CROSS_CHECKED)


class Listener(Protocol):
    """Shows the progress of many builds; its methods are called from any thread."""

    remarks: set[str]

    def heard(self, event: Event) -> None:
        """Take what a worker reports."""

    def ended(self, outcome: Outcome) -> None:
        """Take the end of one build."""

    def note(self, text: str) -> None:
        """Take a remark on the whole."""


class Remarks(Silent):
    """A reporter whose remarks go to the listener of all images; steps of work that is done for all of them do, too."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def step(self, text: str) -> None:
        """Pass the phase on."""
        self._listener.note(f"lock: {text}")

    def note(self, text: str) -> None:
        """Pass the remark on; workers that report the same add nothing."""
        self._listener.remarks.add(text)
        self._listener.note(text)


@dataclass(slots=True, kw_only=True)
class FleetRun:
    """One run over all images. `outcomes` and `jobs` are also valid after `build` raised."""

    request: FleetRequest
    listener: Listener
    outcomes: list[Outcome] = field(default_factory=list)
    jobs: int | None = None  # parallel builds, if known here

    def build(self) -> None:
        """Build every image; one failure does not stop the others.

        Raises:
            EnvironmentProblem: no engine, no disk space, no cluster.
            UsageError: the output cannot hold several images.
            InterruptedRun: a signal ended the run.
        """
        asked, listener = self.request, self.listener
        names = [cell.name for cell in asked.found.cells]
        listener.note(f"{counted(len(names), 'image')} of {asked.where}")
        engine = self._engine()
        own = {"verify": asked.verify, "no_lock": asked.no_lock, "allow_cpu": asked.allow_cpu}
        mirrors = asked.settings.values["preset"]
        preset = mirrors.text if mirrors.origin == "flag" else None
        tasks = [task_of(cell, engine, asked.options, **own, preset=preset) for cell in asked.found.cells]
        last = LastRun(state_dir(), digest_of(asked.found.cells, tasks))
        done = last.resume() if asked.resume else {}
        if asked.resume:
            listener.note(f"{len(done)} of {len(names)} images are there from the last run" if done else _NOTHING)
        pool, run = self._pool(engine, len(names) - len(done))

        def heard(outcome: Outcome) -> None:
            self.outcomes.append(outcome)
            last.note(outcome)
            listener.ended(outcome)

        last.begin()
        try:
            with pool:
                run(with_locks(in_order(asked.found.cells, tasks), done, self._locks(engine)), heard)
        except BaseException as error:
            explain_interruption(error, len(self.outcomes), len(names))
            self.outcomes += stopped(tasks, self.outcomes, error)
            raise

    def _engine(self) -> str:
        """Return the engine of all images: `auto` is one of this machine, or on a cluster the embedded one."""
        name = self.request.engine
        if self.request.scheduler is not None:
            return EMBEDDED if name == "auto" else name
        docker_cli = self.request.settings.get("docker_cli") or "docker"
        return choose(name, Remarks(self.listener), docker_cli=docker_cli, state=state_dir()).name

    def _locks(self, engine: str) -> Locks | None:
        from envkit.pipeline.locking import Locks  # noqa: PLC0415 - takes 0.1 s to import

        return None if self.request.no_lock else Locks(self.request.settings, engine, Remarks(self.listener))

    def _pool(self, engine: str, images: int) -> tuple[AbstractContextManager[object], Run]:
        """Return who works, and how they are given work."""
        asked, listener = self.request, self.listener
        if asked.scheduler is not None:
            from envkit.fleet.cluster_run import ClusterRun  # noqa: PLC0415 - dask takes 0.5 s to import

            fleet = ClusterRun(
                asked.scheduler,
                engine=engine,
                output=asked.options.output,
                share=parse_share(asked.cross_check or _CROSS_CHECKED),
                note=listener.note,
                heard=listener.heard,
            )
            return fleet, fleet.run
        from envkit.fleet.concurrency import bound, room_here  # noqa: PLC0415
        from envkit.fleet.local import LocalPool  # noqa: PLC0415

        limit = bound(room_here(cache_dir()), images, asked.jobs)
        listener.note(f"{counted(limit.jobs, 'parallel build')} ({limit.why})")
        self.jobs = limit.jobs
        pool = LocalPool(limit.jobs, heard=listener.heard)
        return pool, lambda tasks, heard: schedule.run(tasks, pool, heard)


def with_locks(
    ordered: Sequence[tuple[Cell, BuildTask]], done: Mapping[str, Outcome], locks: Locks | None
) -> Iterator[BuildTask | Outcome]:
    """Yield every task with its lock, as soon as that is solved; what is done or cannot be solved is an outcome."""
    for cell, task in ordered:
        if cell.name in done:
            yield done[cell.name]
        elif locks is None:
            yield task
        else:
            try:
                lock = locks.of(cell.plan, str(task.options["base"]))
            except EnvkitError as error:
                yield failed(task, error)
            else:
                yield replace(task, lock=to_text(lock))


def explain_interruption(error: BaseException, done: int, count: int) -> None:
    """Add to an error how many images are done and how to continue."""
    if isinstance(error, Ending):
        error.details = (*error.details, f"{done} of {count} images are done")
        error.hint = error.hint or "run the same command with --resume to continue"


def stopped(tasks: Sequence[BuildTask], outcomes: Sequence[Outcome], error: BaseException) -> list[Outcome]:
    """Return the outcomes of the tasks that the end of the run left undone."""
    known = {outcome.name for outcome in outcomes}
    why = error if isinstance(error, Ending) else InterruptedRun(2)
    return [failed(task, why, status="stopped") for task in tasks if task.name not in known]
