"""Build many images, on this machine or on a cluster, from their plans and locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from envkit.assemble.builders import EMBEDDED, choose
from envkit.fleet import schedule
from envkit.fleet.cluster import check_address, check_output
from envkit.fleet.schedule import failed
from envkit.fleet.state import LastRun, digest_of
from envkit.fleet.tasks import in_order, task_of
from envkit.ground.errors import Ending, EnvkitError, InterruptedRun
from envkit.ground.paths import cache_dir, state_dir
from envkit.ground.progress import Silent, counted
from envkit.lock.store import to_text
from envkit.pipeline.choosing import tell_unchosen

if TYPE_CHECKING:
    from envkit.engines.model import BuildOptions
    from envkit.fleet.expand import Expanded
    from envkit.fleet.local import Event
    from envkit.fleet.model import BuildTask, Cell, Outcome
    from envkit.ground.settings import Settings
    from envkit.pipeline.locking import Locks
    from envkit.plan.model import BuildPlan

    Run = Callable[[Iterable[BuildTask | Outcome], Callable[[Outcome], None]], object]

_NOTHING = "no finished images from an earlier run with these images and flags; building all"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """Which images to build, and how."""

    expanded: Expanded
    where: str  # the matrix file, or another source of the images
    settings: Settings
    options: BuildOptions
    engine: str  # from `engine_name`
    verify: bool = True
    no_lock: bool = False
    allow_cpu: bool = False
    jobs: int | None = None  # parallel builds on this machine; None = as many as fit
    resume: bool = False
    scheduler: str | None = None  # None = this machine

    def check(self) -> None:
        """Check the options of a cluster before anything begins.

        Raises:
            UsageError: the address or the output is invalid.
        """
        if self.scheduler is not None:
            check_address(self.scheduler)
            check_output(self.options)


class Listener(Protocol):
    """Shows the progress of many builds; its methods are called from any thread."""

    remarks: set[str]

    def heard(self, event: Event) -> None:
        """Take a progress event of a worker."""

    def ended(self, outcome: Outcome) -> None:
        """Take the end of one build."""

    def note(self, text: str) -> None:
        """Take a remark on the whole run."""


class Remarks(Silent):
    """A reporter for work that is done for all images: its steps and remarks become remarks of the listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def step(self, text: str) -> None:
        """Pass the phase on."""
        self._listener.note(f"lock: {text}")

    def note(self, text: str) -> None:
        """Pass the remark on, and record it so that the same remark of a worker is not repeated."""
        self._listener.remarks.add(text)
        self._listener.note(text)


@dataclass(slots=True, kw_only=True)
class FleetRun:
    """One run over all images. `outcomes` and `jobs` are also valid after `build` raised."""

    request: FleetRequest
    listener: Listener
    outcomes: list[Outcome] = field(default_factory=list)
    jobs: int | None = None  # parallel builds, if known here
    chosen: dict[str, BuildPlan] = field(default_factory=dict)  # by cell, if packages decided on another torch

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells with the plans that their images have."""
        return tuple(replace(cell, plan=self.chosen.get(cell.name, cell.plan)) for cell in self.request.expanded.cells)

    def build(self) -> None:
        """Build every image; one failure does not stop the others.

        Raises:
            EnvironmentProblem: no engine, no disk space, no cluster.
            UsageError: the output cannot hold several images.
            InterruptedRun: a signal ended the run.
        """
        request, listener = self.request, self.listener
        cells = request.expanded.cells
        listener.note(f"{counted(len(cells), 'image')} of {request.where}")
        engine = self._engine()
        own = {"verify": request.verify, "no_lock": request.no_lock, "allow_cpu": request.allow_cpu}
        mirrors = request.settings.values["preset"]
        # A preset from this machine's settings is not sent: workers have settings of their own.
        preset = mirrors.text if mirrors.origin == "flag" else None
        if request.no_lock:
            for cell in cells:
                if cell.asked is not None:
                    tell_unchosen(cell.asked, cell.plan, Remarks(listener))
        tasks = [task_of(cell, engine, request.options, **own, preset=preset) for cell in cells]
        last = LastRun(state_dir(), digest_of(cells, tasks))
        done = last.resume() if request.resume else {}
        if request.resume:
            listener.note(f"{len(done)} of {len(cells)} images were finished in the last run" if done else _NOTHING)
        pool, run = self._pool(engine, len(cells) - len(done))

        def on_outcome(outcome: Outcome) -> None:
            self.outcomes.append(outcome)
            last.note(outcome)
            listener.ended(outcome)

        # Only now: it drops outcomes of the last run, which --resume still needs if there is no pool.
        last.begin()
        try:
            with pool:
                run(with_locks(in_order(cells, tasks), done, self._locks(engine), self.chosen), on_outcome)
        # Not `Exception`: InterruptedRun is none.
        except BaseException as error:
            explain_interruption(error, len(self.outcomes), len(cells))
            self.outcomes += stopped(tasks, self.outcomes, error)
            raise

    def _engine(self) -> str:
        """Return the engine of all images. `auto` chooses one on this machine; on a cluster it means embedded."""
        name = self.request.engine
        if self.request.scheduler is not None:
            return EMBEDDED if name == "auto" else name
        docker_cli = self.request.settings.get("docker_cli") or "docker"
        return choose(name, Remarks(self.listener), docker_cli=docker_cli, state=state_dir()).name

    def _locks(self, engine: str) -> Locks | None:
        from envkit.pipeline.locking import Locks  # noqa: PLC0415 - takes 0.1 s to import

        return None if self.request.no_lock else Locks(self.request.settings, engine, Remarks(self.listener))

    def _pool(self, engine: str, images: int) -> tuple[AbstractContextManager[object], Run]:
        """Return the pool of workers and the function that runs tasks on it."""
        request, listener = self.request, self.listener
        if request.scheduler is not None:
            from envkit.fleet.cluster_run import ClusterRun  # noqa: PLC0415 - dask takes 0.5 s to import

            fleet = ClusterRun(
                request.scheduler,
                engine=engine,
                options=request.options,
                note=listener.note,
                on_event=listener.heard,
            )
            return fleet, fleet.run
        from envkit.fleet.concurrency import parallel_builds, resources_here  # noqa: PLC0415
        from envkit.fleet.local import LocalPool  # noqa: PLC0415

        limit = parallel_builds(resources_here(cache_dir()), images, request.jobs)
        listener.note(f"{counted(limit.jobs, 'parallel build')} ({limit.why})")
        self.jobs = limit.jobs
        pool = LocalPool(limit.jobs, on_event=listener.heard)
        return pool, lambda tasks, on_outcome: schedule.run(tasks, pool, on_outcome)


def with_locks(
    ordered: Sequence[tuple[Cell, BuildTask]],
    done: Mapping[str, Outcome],
    locks: Locks | None,
    chosen: dict[str, BuildPlan],
) -> Iterator[BuildTask | Outcome]:
    """Yield each task as soon as its lock is solved; an image that is done or cannot be locked is an `Outcome`.

    Args:
        ordered: the cells and their tasks.
        done: outcomes of images that are not built again, by cell.
        locks: solves; None = conda and pip solve during the build.
        chosen: receives the plan of each cell whose packages require another torch than the newest.
    """
    for cell, task in ordered:
        if cell.name in done:
            yield done[cell.name]
        elif locks is None:
            yield task
        else:
            try:
                plan, lock = locks.chosen(cell.asked or cell.plan, str(task.options["base"]))
            except EnvkitError as error:
                yield failed(task, error)
            else:
                if plan.digest != cell.plan.digest:
                    chosen[cell.name] = plan
                yield replace(task, plan=plan.canonical().decode(), lock=to_text(lock))


def explain_interruption(error: BaseException, done: int, count: int) -> None:
    """Add to an error how many images are done and how to continue."""
    if isinstance(error, Ending):
        error.details = (*error.details, f"{done} of {count} images are done")
        error.hint = error.hint or "run the same command with --resume to continue"


def stopped(tasks: Sequence[BuildTask], outcomes: Sequence[Outcome], error: BaseException) -> list[Outcome]:
    """Return the outcomes of the tasks that were not finished when the run ended."""
    known = {outcome.name for outcome in outcomes}
    cause = error if isinstance(error, Ending) else InterruptedRun(2)  # 2 = SIGINT
    return [failed(task, cause, status="stopped") for task in tasks if task.name not in known]
