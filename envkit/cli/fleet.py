"""`envkit build` of several images: of names, of a folder, of a matrix; on this machine or on a cluster."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.request_options import given, load_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from envkit.build.model import BuildOptions
    from envkit.cli.board import Board
    from envkit.fleet.cells import Expanded
    from envkit.fleet.locks import Locks
    from envkit.fleet.matrix import Matrix
    from envkit.fleet.model import BuildTask, Cell, Outcome
    from envkit.ground.settings import Settings, Value

    Run = Callable[[Iterable[BuildTask | Outcome], Callable[[Outcome], None]], object]

FLAGS = ("every", "matrix", "jobs", "resume", "skip_impossible", "scheduler", "cross_check")
_ALONE = {
    "tags": ("-t", "--output registry:HOST/NAME gives each image a tag of its own"),
    "plan": ("--plan", "several are named by their definitions, or by a matrix"),
    "locked": ("--locked", "leave it out: every image's lock is solved, equal ones once"),
    "offline": ("--offline", "envkit lock, then envkit build --locked FILE --offline, for each of them"),
    "report": ("--report", "-o FILE tells of all of them"),
    "push": ("--push", "--output registry:HOST/NAME sends each of them there"),
}
FOLDER = Path("images")
_TWICE = "1"  # image of a fleet that two workers build, unless --cross-check says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says about several images."""

    definitions: tuple[str, ...]
    every: bool  # --all
    matrix: Path | None
    jobs: int | None
    resume: bool
    skip_impossible: bool
    scheduler: str | None
    cross_check: str | None  # 'all' or a number; None = as if nothing had been said

    @property
    def several(self) -> bool:
        """Whether this is more than one build as it has always been."""
        return len(self.definitions) > 1 or self.every or self.matrix is not None or self.scheduler is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What the command line says about every image."""

    template: str | None
    typed: Mapping[str, Any]  # the request's flags among others
    resolved: Settings
    options: BuildOptions
    no_lock: bool
    no_verify: bool
    allow_cpu: bool
    progress: str
    document: str | None  # a file, `-` for stdout


def check(asked: Asked) -> str | None:
    """Refuse flags that contradict each other; gives the one definition where there is one.

    Raises:
        UsageError: images are named in two ways, or a flag for several images goes with one.
    """
    from envkit.ground.errors import UsageError

    ways = [
        name for name, on in (("names", asked.definitions), ("--all", asked.every), ("--matrix", asked.matrix)) if on
    ]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} each say which images to build", hint="give one of them")
    if asked.cross_check is not None and asked.scheduler is None:
        raise UsageError("--cross-check compares what two workers build", hint="--scheduler tcp://HOST:PORT")
    if asked.several:
        return None
    for flag, on in (("--jobs", asked.jobs), ("--resume", asked.resume), ("--skip-impossible", asked.skip_impossible)):
        if on:
            raise UsageError(f"{flag} is for several images", hint="envkit build a b c, --all, or --matrix FILE")
    return asked.definitions[0] if asked.definitions else None


def check_alone(**typed: object) -> None:
    """Refuse what is for one image.

    Raises:
        UsageError: a flag was given that several images cannot share.
    """
    from envkit.ground.errors import UsageError

    for key, (flag, hint) in _ALONE.items():
        if typed.get(key):
            raise UsageError(f"{flag} is for one image", hint=hint)


def build_many(asked: Asked, how: How) -> int:
    """Build every image, show what became of each, and give the gravest exit code.

    Raises:
        UsageError: flags, the matrix or a definition are at fault.
        ConflictError: a cell is impossible and may not be skipped, or none is left.
        SurroundingsError: no engine, no disk, no cluster.
    """
    from envkit.cli.board import board
    from envkit.cli.cache import keep_within
    from envkit.cli.fleet_report import publish
    from envkit.fleet import cells, report
    from envkit.fleet.locks import Locks
    from envkit.fleet.state import LastRun, digest_of
    from envkit.fleet.tasks import in_order, task_of
    from envkit.ground.paths import state_dir
    from envkit.ground.progress import counted
    from envkit.plan.definition import load

    began = time.monotonic()
    engine = _engine_asked(asked, how)
    matrix, facts_file = chosen(asked), how.typed["facts_file"]
    here = replace(how.resolved, values={**how.resolved.values, **_flag("facts", facts_file)})
    typed = given(how.typed) | {"template": how.template}
    found = cells.expand(matrix, typed, load_facts(facts_file), load, base=how.options.base)
    _refuse_impossible(found, skip=asked.skip_impossible)
    names = [cell.name for cell in found.cells]
    talk = board(how.progress, names)
    outcomes: list[Outcome] = []
    jobs: int | None = None

    def heard(outcome: Outcome) -> None:
        outcomes.append(outcome)
        last.note(outcome)
        talk.ended(outcome)

    with ExitStack() as stack:
        stack.callback(talk.close)
        talk.note(f"{counted(len(names), 'image')} of {matrix.where}")
        engine = _one_engine(engine, asked, here, talk)
        own = {"verify": not how.no_verify, "no_lock": how.no_lock, "allow_cpu": how.allow_cpu}
        tasks = [task_of(cell, engine, how.options, **own) for cell in found.cells]
        last = LastRun(state_dir(), digest_of(found.cells, tasks))
        done = last.resume() if asked.resume else {}
        if asked.resume:
            talk.note(f"{len(done)} of {len(names)} images are there from the last run" if done else _NOTHING)
        ordered = in_order(found.cells, tasks)
        pool, run, jobs = _pool(asked, how, engine, len(names) - len(done), talk)
        last.begin()
        try:
            with pool:
                run(_tasks(ordered, done, None if how.no_lock else Locks(here, engine, _Remarks(talk))), heard)
        except BaseException as error:
            stack.close()
            _tell_interrupted(error, len(outcomes), len(names))
            outcomes += _stopped(tasks, outcomes, error)
            publish(found, outcomes, matrix.where, how.document, began=began, jobs=jobs, skip=asked.skip_impossible)
            raise
        keep_within(here.get("cache_limit"), _Remarks(talk))
    publish(found, outcomes, matrix.where, how.document, began=began, jobs=jobs, skip=asked.skip_impossible)
    return report.exit_code(outcomes, found.impossible, skip=asked.skip_impossible)


_NOTHING = "no image is there from an earlier run of these images and flags; all are built"


def _flag(key: str, text: str | None) -> dict[str, Value]:
    """A setting that a flag gives."""
    from envkit.ground.settings import Value

    return {} if text is None else {key: Value(text, "flag")}


def chosen(asked: Asked) -> Matrix:
    """The matrix that was named, or one of the images alone.

    Raises:
        UsageError: the file is at fault, or `--all` finds nothing.
    """
    from envkit.fleet.matrix import Matrix, read_matrix
    from envkit.plan.definition import shipped

    if asked.matrix is not None:
        return read_matrix(asked.matrix)
    if not asked.every:
        return Matrix(where="the command line", images=tuple(dict.fromkeys(asked.definitions or ("default",))))
    own = sorted(str(path) for ending in ("*.yaml", "*.yml") for path in FOLDER.glob(ending))
    if own:
        return Matrix(where=f"./{FOLDER}", images=tuple(own))
    return Matrix(where="the images that come with envkit", images=tuple(shipped()))


def _tasks(
    ordered: Sequence[tuple[Cell, BuildTask]], done: Mapping[str, Outcome], locks: Locks | None
) -> Iterator[BuildTask | Outcome]:
    """Every task with its lock, as soon as that is solved; what is done or cannot be solved is an outcome already."""
    from envkit.fleet.schedule import failed
    from envkit.ground.errors import EnvkitError
    from envkit.lock.store import to_text

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


def _engine_asked(asked: Asked, how: How) -> str:
    """The engine that was named, or `auto`; refuses what cannot be built on many machines before anything begins."""
    from envkit.cli import choices
    from envkit.fleet.cluster import check_address, check_output, parse_share

    if asked.scheduler is not None:
        check_address(asked.scheduler)
        check_output(how.options.output)
        parse_share(asked.cross_check or _TWICE)
        # Whichever engine builds: what a worker has made is sent to the registry from there.
        return choices.engine_name(how.resolved, replace(how.options, output=None, replace_tag=False, mount_from=()))
    return choices.engine_name(how.resolved, how.options)


def _pool(
    asked: Asked, how: How, engine: str, images: int, talk: Board
) -> tuple[AbstractContextManager[object], Run, int | None]:
    """Who works, how they are given work, and how many work at once, where that is known here."""
    if asked.scheduler is not None:
        from envkit.fleet.cluster import parse_share
        from envkit.fleet.cluster_run import ClusterRun

        fleet = ClusterRun(
            asked.scheduler, engine=engine, output=how.options.output, share=parse_share(asked.cross_check or _TWICE),
            note=talk.note, heard=talk.heard,
        )  # fmt: skip
        return fleet, fleet.run, None
    from envkit.fleet import schedule
    from envkit.fleet.bounds import bound, room_here
    from envkit.fleet.local import LocalPool
    from envkit.ground.paths import cache_dir
    from envkit.ground.progress import counted

    found = bound(room_here(cache_dir()), images, asked.jobs)
    talk.note(f"{counted(found.jobs, 'build')} at once ({found.why})")
    pool = LocalPool(found.jobs, heard=talk.heard)
    return pool, lambda tasks, heard: schedule.run(tasks, pool, heard), found.jobs


def _one_engine(name: str, asked: Asked, resolved: Settings, talk: Board) -> str:
    """The engine of all images: `auto` means one of this machine, or on a cluster the one that needs no daemon."""
    from envkit.assemble.builders import EMBEDDED, choose
    from envkit.ground.paths import state_dir

    if asked.scheduler is not None:
        return EMBEDDED if name == "auto" else name
    docker_cli = resolved.get("docker_cli") or "docker"
    return choose(name, _Remarks(talk), docker_cli=docker_cli, state=state_dir()).name


def _refuse_impossible(found: Expanded, *, skip: bool) -> None:
    from envkit.ground.errors import ConflictError

    if not found.impossible or (skip and found.cells):
        for one in found.impossible:
            click.echo(f"skipped: {one.name}: {one.reason}", err=True)
        return
    first, *others = found.impossible
    left = f"--skip-impossible builds the other {len(found.cells)}" if found.cells else first.hint
    raise ConflictError(
        f"{first.name} is impossible: {first.reason}",
        details=tuple(f"{one.name}: {one.reason}" for one in others),
        hint=left or "envkit matrix list",
    )


def _tell_interrupted(error: BaseException, done: int, all_of_them: int) -> None:
    from envkit.ground.errors import Ending

    if isinstance(error, Ending):
        error.details = (*error.details, f"{done} of {all_of_them} images are done")
        error.hint = error.hint or "the same command with --resume goes on"


def _stopped(tasks: Sequence[BuildTask], outcomes: Sequence[Outcome], error: BaseException) -> list[Outcome]:
    """What became of the tasks that the end of the run has left undone."""
    from envkit.fleet.schedule import failed
    from envkit.ground.errors import Ending, InterruptedRun

    known = {one.name for one in outcomes}
    why = error if isinstance(error, Ending) else InterruptedRun(2)
    return [failed(task, why, status="stopped") for task in tasks if task.name not in known]


class _Remarks:
    """A reporter whose remarks are the board's; steps of what is done for all images are remarks too."""

    def __init__(self, talk: Board) -> None:
        self._talk = talk

    def step(self, text: str) -> None:
        """Pass the phase on."""
        self._talk.note(f"lock: {text}")

    def log(self, line: str) -> None:
        """Ignore."""

    def advance(self, done: int, total: int | None) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Pass the remark on; workers that say the same say nothing new."""
        self._talk.remarks.add(text)
        self._talk.note(text)

    def close(self) -> None:
        """Leave closing to whoever made the board."""
