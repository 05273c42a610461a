"""Build one image from its plan to a verified, tagged result.

    lock (existing_lock, lock_for_build) -> build -> verify -> tag and push

`build` runs all stages, for `envkit build`. `build_and_verify` is the part that the fleet's workers share.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble.builders import EMBEDDED, choose
from envkit.engines.log import new_log
from envkit.ground.errors import EngineError, EnvironmentProblem, LockError, UsageError
from envkit.ground.paths import state_dir
from envkit.ground.progress import Silent
from envkit.ground.sizes import shown_size
from envkit.ground.state import LastBuilt, write_built, write_last
from envkit.ground.text import neutral
from envkit.image.name import InLayout
from envkit.lock.model import FILE
from envkit.lock.store import store_lock
from envkit.pipeline import choosing, locking, publish
from envkit.pipeline.deadline import Deadline
from envkit.pipeline.machine import memory_of, name_and_engine
from envkit.pipeline.verification import VerifyRequest, check_runner, subject_of, verify
from envkit.plan import copying
from envkit.plan.store import store_plan
from envkit.run import remedies, runners
from envkit.run.model import RunLimits
from envkit.verify.driver import Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.assemble.bytecode import Execute
    from envkit.engines.model import Builder, BuildOptions, BuiltImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.model import Lock
    from envkit.pipeline.publish import Push, Tagging
    from envkit.pipeline.resolving import Asked
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner
    from envkit.verify.record import Record

_KEPT_LOGS = 20  # older ones are deleted
_SANDBOXES = ("bubblewrap", "proot")
_COMPILE_S = 1800.0  # of one run, which has at most 32 MB of sources; those of torch take seconds
_MOST_BYTECODE = 1 << 30  # bytes
_LINES = 10  # of a failed run's output in the error


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One image to build, with all options."""

    plan: BuildPlan
    options: BuildOptions
    settings: Settings  # engine, runner, mirrors
    engine: str  # from `engine_name`
    asked: Asked | None = None  # the plan is made from it again if packages require another torch; None = it is not
    locked: str | None = None  # the lock file; None = envkit.lock if it fits, else a new lock
    no_lock: bool = False  # conda and pip solve during the build
    lock_command: str = "envkit lock"  # writes the lock of this request; for hints
    folder: Path = Path()  # its envkit.lock is used if it fits
    verify: bool = True
    tier: str | None = None  # of the verification; None = the plan's
    allow_cpu: bool = False  # a CUDA image passes without a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The outcome of a build."""

    image: BuiltImage
    plan: BuildPlan  # of the image; a lock or its packages may have decided on another torch than the request's plan
    record: Record | None  # of the verification; None = not requested
    tags: tuple[Tagging, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Callbacks during a build."""

    locked: Callable[[Lock], None] = lambda _: None  # the lock is known; nothing is downloaded yet
    built: Callable[[BuiltImage], None] = lambda _: None  # the image exists; it is not verified yet


def engine_name(settings: Settings, options: BuildOptions) -> str:
    """Return the engine's name or `auto`; `--output`, `--offline` and zstd need the embedded engine.

    Raises:
        UsageError: an option needs the embedded engine, but another one is named.
    """
    name = settings.get("engine") or "auto"
    typed = {
        "--output": options.output is not None,
        "--offline": options.offline,
        f"--compression {options.compression}": options.compression != "gzip",
    }
    flag = next((flag for flag, given in typed.items() if given), None)
    if flag is None:
        return name
    if name not in ("auto", EMBEDDED):
        raise UsageError(f"{flag} needs the embedded engine, not {name}", hint="--engine embedded")
    return EMBEDDED


def options_here(options: BuildOptions, settings: Settings, name: str, *, logs: int = _KEPT_LOGS) -> BuildOptions:
    """Add this machine's settings to build options: mirrors, folders, and a new log file.

    Args:
        options: from the request.
        settings: of this machine.
        name: the image's name, for the log file.
        logs: the number of log files to keep.
    """
    templates, wheels = settings.get("templates"), settings.get("wheel_dir")
    return replace(
        options,
        mirrors=settings.mirrors(),
        template_dirs=(Path(templates),) if templates else (),
        wheel_dir=Path(wheels) if wheels else None,
        log_file=new_log(Path(settings.get("log_dir") or state_dir() / "logs"), name, keep=logs),
    )


def choose_builder(request: BuildRequest, reporter: Reporter) -> Builder:
    """Return the engine's builder after checking that its image can be verified here.

    Raises:
        UsageError: the engine is unknown, or the runner cannot verify an image.
        EnvironmentProblem: no engine answers, or no runner works.
    """
    # Checked twice: a runner that cannot verify any build is refused before engines are probed.
    if request.verify:
        check_runner(request.settings)
    docker_cli = request.settings.get("docker_cli") or "docker"
    builder = choose(
        request.engine,
        reporter,
        docker_cli=docker_cli,
        state=state_dir(),
        execute=sandbox(request.settings),
        receive=runners.unpacking(request.settings.get("runner") or "auto", request.options.target)
        if request.verify
        else None,
    )
    if request.verify:
        check_runner(request.settings, engine=builder.name, target=request.options.target)
    return builder


def sandbox(settings: Settings) -> Execute:
    """Return what runs commands in the image of a layout; a runner of this machine without an engine does it.

    The image is the base and the Python of an image that is being built, which the same runner then verifies. The
    function raises:

        EngineError: the command failed.
        EnvironmentProblem: neither bubblewrap nor proot works here.
        TimeLimitError: it took more than half an hour.
    """
    # One runner for all runs of a build: a new one would look for its means and check every unpacked file once more.
    working = cache(_working_runner)

    def execute(layout: Path, argv: Sequence[str], files: Mapping[str, bytes]) -> bytes:
        limits = RunLimits(timeout_s=_COMPILE_S, output_bytes=_MOST_BYTECODE, memory_mb=memory_of(settings))
        done = working().run(InLayout(path=layout), argv, files, gpus=None, limits=limits, reporter=Silent())
        if done.exit_code != 0 or done.output_cut:
            lines = tuple(neutral(line) for line in done.stderr.decode(errors="replace").splitlines() if line.strip())
            raise EngineError(
                f"{argv[0]} of the image cannot compile its modules: exit code {done.exit_code}",
                hint="add `bytecode: false` to the definition",
                details=lines[-_LINES:],
            )
        return done.stdout

    return execute


def _working_runner() -> Runner:
    reasons = []
    for name in _SANDBOXES:
        runner = runners.make(name)
        reason = runner.probe()
        if reason is None:
            return runner
        reasons.append(f"{name}: {reason}")
    raise EnvironmentProblem(
        f"{reasons[0]}, so the modules of the image cannot be compiled here",
        hint=f"{remedies.hint(building=False)}; or add `bytecode: false` to the definition",
        details=tuple(reasons[1:]),
    )


def require_lock(lock: Lock | None, request: BuildRequest) -> None:
    """Refuse a build that needs a lock and has none: offline builds, and packages built from source.

    Raises:
        LockError: the build is offline and no lock fits.
        UsageError: `--no-lock` is given and the definition has packages that are built from source.
    """
    if request.no_lock and request.plan.allow_source:
        raise UsageError(
            f"packages that are built from source need a lock: {', '.join(request.plan.allow_source):.300}",
            hint="remove --no-lock",
        )
    if lock is None and request.options.offline:
        raise LockError("--offline needs a lock that fits this request", hint=request.lock_command)


def build(request: BuildRequest, push: Push, reporter: Reporter, deadline: Deadline, watcher: Watcher) -> BuildResult:
    """Lock, build, verify, tag and push one image, and record it as the last one built for `envkit verify`.

    Args:
        request: what to build.
        push: the registries and tags.
        reporter: receives the steps.
        deadline: applies to everything except verification, which has its own limits.
        watcher: is called between the stages.

    Raises:
        EnvkitError: a stage failed.
    """
    plan, lock, old = request.plan, None, None
    copying.check_files(plan)  # reports missing files before anything is downloaded
    if not request.no_lock:
        file = Path(request.locked or request.folder / FILE)
        plan, old = choosing.plan_for(request.asked or plan, file)
        lock = locking.existing_lock(
            plan, file, request.options.base, request.lock_command, reporter, named=request.locked is not None
        )
    elif request.asked is not None:
        choosing.tell_unchosen(request.asked, plan, reporter)
    require_lock(lock, request)
    with deadline.holds():
        builder = choose_builder(request, reporter)
        # Before the lock is solved: a registry that refuses is found in seconds here, and after the whole build later.
        options = push.begin(builder.name, request.options, plan, reporter)
        if lock is None and not request.no_lock:
            to_lock = locking.LockRequest(plan=plan, settings=request.settings, base=options.base, old=old)
            plan, lock = choosing.solve(
                request.asked or plan,
                lambda plan: locking.lock_for_build(replace(to_lock, plan=plan), builder, reporter),
                lambda plan: locking.probe_of(request.settings, plan),
                reporter,
                old=old,
            )
    request = replace(request, plan=plan)
    if lock is not None:
        locking.keep_lock(state_dir(), lock, reporter)
        watcher.locked(lock)

    def built_is_known(image: BuiltImage) -> None:
        # Before verification: if that is interrupted, `envkit verify` without a name repeats it.
        watcher.built(image)
        _remember(plan, image, reporter)

    image, record = build_and_verify(
        replace(request, options=options), builder, lock, reporter, deadline=deadline, built=built_is_known
    )
    with deadline.holds():
        tags = push.end(image, options, record, reporter)
    return BuildResult(image=image, plan=plan, record=record, tags=tags)


def build_and_verify(
    request: BuildRequest,
    builder: Builder,
    lock: Lock | None,
    reporter: Reporter,
    *,
    deadline: Deadline | None = None,
    built: Callable[[BuiltImage], None] = lambda _: None,
    exclusive: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[BuiltImage, Record | None]:
    """Build an image and verify it in the same way as `envkit verify`.

    Args:
        request: what to build.
        builder: from `choose_builder`.
        lock: the artifacts to install; None = conda and pip solve during the build.
        reporter: receives the steps.
        deadline: of the build; None = only `request.options.timeout_s` applies.
        built: called with the image before it is verified.
        exclusive: verification runs inside this context, so that only one runs on a machine at a time.

    Raises:
        EnvkitError: as `Builder.build` and `envkit.pipeline.verification.verify` raise.
    """
    plan, options = request.plan, request.options
    # A missing wheel is built from source, which needs the network. Offline, the engine reports that it is missing.
    if lock is not None and not options.offline:
        with deadline.holds() if deadline is not None else contextlib.nullcontext():
            locking.provide_sources(plan, lock, request.settings, reporter)
    if deadline is None:
        image = builder.build(plan, lock, options, reporter)
    else:
        # Engines with a daemon have their own timer, and their error shows the end of the log.
        with deadline.holds(alarm=builder.name == EMBEDDED):
            image = builder.build(plan, lock, replace(options, timeout_s=deadline.left()), reporter)
    built(image)
    if not request.verify:
        return image, None
    name, engine = name_and_engine(image)
    verify_options = Options(allow_cpu=request.allow_cpu, argv=tuple(sys.argv))
    with publish.tag_explained(image, options), exclusive(), contextlib.ExitStack() as until:
        to_verify = VerifyRequest(
            image=name, options=verify_options, plan=plan, engine=engine, tier=request.tier, built=True
        )
        return image, verify(subject_of(to_verify, request.settings, reporter, until), reporter)


def keep_inputs(plan: BuildPlan, lock: Lock | None, state: Path) -> None:
    """Save a plan and a lock in the state folder. Failures are ignored: later commands can do without them."""
    with contextlib.suppress(OSError):
        store_plan(state, plan)
        if lock is not None:
            store_lock(state, lock)


def last_of(plan: BuildPlan, built: BuiltImage) -> LastBuilt:
    """Return what the state folder keeps of an image that was built now."""
    image, engine = name_and_engine(built)
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return LastBuilt(image=image.typed, tags=built.tags, plan=plan.digest, engine=engine, built=now, id=built.id)


def _remember(plan: BuildPlan, built: BuiltImage, reporter: Reporter) -> None:
    """Report the built image, and save its plan and name for `envkit verify`."""
    state, last = state_dir(), last_of(plan, built)
    try:
        store_plan(state, plan)
        write_built(state, (built.id, last.image))
        write_last(state, last)
    except OSError as error:
        reporter.note(
            f"the image was not recorded as the last one built ({error.filename}: {error.strerror}); "
            "name it when you run envkit verify"
        )
    size = "size unknown" if built.size is None else shown_size(built.size)
    reporter.note(f"built {', '.join(built.tags)} ({size}) in {built.duration_s:.0f} s: {built.place or built.id}")
