"""One task from plan to image, on whichever machine works on it: its mirrors, logins, caches and state folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.assemble.builders import choose
from envkit.build.log import new_log
from envkit.build.model import BuildOptions
from envkit.build.single_flight import Flights
from envkit.fleet import delivery, locks, present
from envkit.fleet.model import BuildTask, Outcome, TagTask
from envkit.fleet.names import hash_tag
from envkit.ground import paths, settings
from envkit.ground.errors import EnvkitError, InterruptedRun, SurroundingsError
from envkit.ground.progress import Reporter, Silent
from envkit.lock.reading import lock_from_json
from envkit.lock.store import digest_of, store_lock
from envkit.plan.store import plan_from_json, store_plan

if TYPE_CHECKING:
    from envkit.ground.settings import Settings
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan
    from envkit.verify.record import Record

BUILT, PRESENT, FAILED, UNPROVED, STOPPED = "built", "present", "failed", "unproved", "stopped"
_KEPT_LOGS = 200
_NAMED = 5  # checks that an outcome names

_talks: list[Callable[[str], Reporter]] = []


def listen(talk: Callable[[str], Reporter] | None) -> None:
    """Let `talk` give the reporter of each task of this process by the task's name; None = nobody listens."""
    _talks[:] = [talk] if talk is not None else []


def talk_of(name: str) -> Reporter:
    """The reporter of a task of this process."""
    return _talks[0](name) if _talks else Silent()


def worker_name() -> str:
    """`host:pid` of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def build(task: BuildTask) -> Outcome:
    """Build one image, prove it, tag it. Every failure that a user can cause is an outcome and is not raised."""
    talk = talk_of(task.name)
    talk.step("begin")
    return _ended(task, lambda: _build(task, talk))


def tag(asked: TagTask) -> Outcome:
    """Set the tags of an image that `build` held; failures as there."""
    return _ended(asked.build, lambda: _tag(asked))


def _ended(task: BuildTask, do: Callable[[], Outcome]) -> Outcome:
    began = time.monotonic()
    try:
        done = do()
    except (EnvkitError, InterruptedRun) as error:
        status = STOPPED if isinstance(error, InterruptedRun) else FAILED
        done = _outcome(task, status, error.exit_code, error=error.message, hint=error.hint, details=error.details)
    except OSError as error:
        found = refused(error)
        done = _outcome(task, FAILED, found.exit_code, error=found.message, hint=found.hint)
    return replace(done, duration_s=time.monotonic() - began)


def refused(error: OSError) -> SurroundingsError:
    """What the system refused, with the place."""
    place = f": {error.filename}" if error.filename else ""
    return SurroundingsError(
        f"{error.strerror or error}{place}", hint="check the path, its permissions and the free disk space"
    )


def _build(task: BuildTask, talk: Reporter) -> Outcome:
    from envkit.pipeline.verification import check_runner, verify_built  # noqa: PLC0415 - takes 0.1 s to import

    here = settings.load({"engine": task.engine}, os.environ, Path.cwd())
    if task.verify:
        check_runner(here)
    state = paths.state_dir()
    plan = plan_from_json(json.loads(task.plan), f"the plan of {task.name}")
    options = options_of(task, here, state)
    builder = choose(task.engine, Silent(), docker_cli=here.get("docker_cli") or "docker", state=state)
    if task.verify:
        check_runner(here, engine=builder.name, output=options.output)
    lock = _lock(task, plan, options, here, talk)
    own_tag = hash_tag(plan.digest, digest_of(lock) if lock else None, further(options, os.environ))
    owed = present.Owed(builder, options, own_tag=own_tag, state=state, verify=task.verify)
    if not options.no_cache and not owed.is_noted:
        found = present.find(builder, plan, lock, options=options, own_tag=own_tag, state=state)
        if found is not None:
            present.name(found, options, own_tag)
            return _outcome(task, PRESENT, 0, digest=found.digest, place=found.place)
    with contextlib.suppress(OSError):  # what was built is then only not remembered
        store_plan(state, plan)
        if lock is not None:
            store_lock(state, lock)
    built = builder.build(plan, lock, owed.begin(), talk)
    record = None
    if task.verify:
        with _turn(state, talk):
            record = verify_built(plan, built, here, talk, allow_cpu=bool(task.options.get("allow_cpu")))
    proved = record is None or record.exit_code == 0
    if proved:
        owed.end(built)
        built = delivery.send(built, options, talk)
    held = own_tag if proved and task.hold and built.pushed is not None else None
    if proved and built.pushed is not None and held is None:
        present.tag(str(built.digest), options, own_tag)
    tree = None if record is None else dict(record.tree)
    done = _outcome(
        task, BUILT if proved else UNPROVED, 0 if record is None else record.exit_code,
        digest=built.digest, place=built.pushed or built.place or built.id, record=tree,
        log=str(built.log_file) if built.log_file else None, held=held,
    )  # fmt: skip
    if record is not None and not proved:
        done = replace(
            done,
            error=f"the image is not proved: {record.verdict}, exit code {record.exit_code}",
            hint=f"envkit verify {built.place or built.id} tells more, --resume builds and proves it again",
            details=_wrong(record),
        )
    sizes = {"size_bytes": built.size, "sent_bytes": built.sent}
    figures = {name: float(value) for name, value in sizes.items() if value is not None}
    return replace(done, figures={"build_s": round(built.duration_s, 3), **figures})


def _tag(asked: TagTask) -> Outcome:
    here = settings.load({"engine": asked.build.engine}, os.environ, Path.cwd())
    present.tag(asked.digest, options_of(asked.build, here, paths.state_dir()), asked.own_tag)
    return _outcome(asked.build, BUILT, 0, digest=asked.digest)


def options_of(task: BuildTask, here: settings.Settings, state: Path) -> BuildOptions:
    """How this machine builds a task."""
    asked: dict[str, Any] = {key: value for key, value in task.options.items() if key not in ("no_lock", "allow_cpu")}
    templates, wheels = here.get("templates"), here.get("wheel_dir")
    for key in ("labels", "secrets"):
        asked[key] = tuple((name, value) for name, value in asked.get(key, ()))
    asked["secrets"] = tuple((name, Path(value)) for name, value in asked["secrets"])
    asked["mount_from"] = tuple(asked.get("mount_from", ()))
    return BuildOptions(
        tags=task.tags,
        output=task.output,
        mirrors=here.mirrors(),
        template_dirs=(Path(templates),) if templates else (),
        wheel_dir=Path(wheels) if wheels else None,
        log_file=new_log(Path(here.get("log_dir") or state / "logs"), task.name, keep=_KEPT_LOGS),
        **{"network": here.get("build_network") or "auto", **asked},
    )


def further(options: BuildOptions, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What decides an image's bytes besides plan and lock; empty in the usual case."""
    labels = tuple(f"label {key}={value}" for key, value in sorted(options.labels))
    packed = (f"compression {options.compression}",) if options.compression != "gzip" else ()
    created = environ.get("SOURCE_DATE_EPOCH")
    return (*labels, *packed, *((f"created {created}",) if created else ()))


def _lock(task: BuildTask, plan: BuildPlan, options: BuildOptions, here: Settings, talk: Reporter) -> Lock | None:
    if task.lock is not None:
        return lock_from_json(json.loads(task.lock), f"the lock of {task.name}")
    if task.options.get("no_lock"):
        return None
    return locks.Locks(here, task.engine, talk).of(plan, options.base)


@contextlib.contextmanager
def _turn(state: Path, talk: Reporter) -> Iterator[None]:
    """One proof at a time on this machine: two would disturb each other's figures, and share a GPU's memory."""
    folder = state / "turns"
    folder.mkdir(parents=True, exist_ok=True)
    flights = Flights(folder)
    with contextlib.ExitStack() as held:
        if not held.enter_context(flights.free(["proof"])):
            talk.step("wait for the proof of another image")
            held.enter_context(flights.all(["proof"], lambda: None))
        yield


def _wrong(record: Record) -> tuple[str, ...]:
    """What went wrong, a line for each: the run as a whole, and the first few checks that say why."""
    trouble = record.tree["run"]["trouble"]
    rows = [row for row in record.tree["checks"] if row["verdict"] in ("FAIL", "ERROR") and row.get("reason")]
    found = [f"{row['id']} {row['verdict']}: {_said(row['reason'])}" for row in rows[:_NAMED]]
    return (*([_said(trouble["reason"])] if trouble else []), *found)


def _said(reason: Any) -> str:
    return str(reason.get("message", reason) if isinstance(reason, Mapping) else reason)[:200]


def _outcome(task: BuildTask, status: str, code: int, **more: Any) -> Outcome:
    return Outcome(name=task.name, status=status, exit_code=code, worker=worker_name(), duration_s=0.0, **more)
