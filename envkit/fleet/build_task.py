"""Build, verify and tag the image of one task on a worker, with the worker's own mirrors, logins and caches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.engines.model import BuildOptions
from envkit.fleet import existing_images
from envkit.fleet.local import with_reporter
from envkit.fleet.model import BuildTask, Outcome, refused, worker_name
from envkit.fleet.names import hash_tag
from envkit.ground import paths, settings
from envkit.ground.errors import EnvkitError, InterruptedRun
from envkit.ground.progress import Reporter, Silent
from envkit.lock.reading import lock_from_json
from envkit.lock.store import digest_of
from envkit.plan.store import plan_from_json
from envkit.report.reading import headline

if TYPE_CHECKING:
    from envkit.ground.settings import Settings
    from envkit.lock.model import Lock
    from envkit.pipeline.building import BuildRequest
    from envkit.verify.record import Record

BUILT, PRESENT, FAILED, UNPROVED, STOPPED = "built", "present", "failed", "unproved", "stopped"
_KEPT_LOGS = 200  # more than for single builds: a large matrix must not delete the logs of its own images
_NAMED = 5  # failed checks listed in an outcome


@with_reporter
def build(task: BuildTask, reporter: Reporter | None = None) -> Outcome:
    """Build one image, verify it and tag it. Failures that a user can cause are returned, not raised."""
    reporter = reporter or Silent()
    reporter.step("begin")  # the first event: progress tables show the image as being built from here on
    return _ended(task, lambda: _build(task, reporter))


def _ended(task: BuildTask, do: Callable[[], Outcome]) -> Outcome:
    began = time.monotonic()
    try:
        done = do()
    except (EnvkitError, InterruptedRun) as error:
        status = STOPPED if isinstance(error, InterruptedRun) else FAILED
        done = _outcome(task, status, error.exit_code, error=error.message, hint=error.hint, details=error.details)
    except OSError as error:
        problem = refused(error)
        done = _outcome(task, FAILED, problem.exit_code, error=problem.message, hint=problem.hint)
    return replace(done, duration_s=time.monotonic() - began)


def _build(task: BuildTask, reporter: Reporter) -> Outcome:
    from envkit.pipeline import building, publish  # noqa: PLC0415 - takes 0.1 s to import
    from envkit.pipeline.verification import verification_lock  # noqa: PLC0415

    request, state = request_of(task), paths.state_dir()
    plan, options = request.plan, request.options
    builder = building.choose_builder(request, Silent())
    lock = _lock(task, request, reporter)
    own_tag = hash_tag(plan.digest, digest_of(lock) if lock else None, further(options, os.environ))
    publication = publish.Publication(builder, options, own_tag=own_tag, state=state, verify=task.verify)
    if not options.no_cache and not publication.is_marked:
        existing = existing_images.find(builder, plan, lock, options=options, own_tag=own_tag, state=state)
        if existing is not None:
            publication.again(existing.place, existing.digest)
            return _outcome(task, PRESENT, 0, digest=existing.digest, place=existing.place)
    building.keep_inputs(plan, lock, state)
    built, record = building.build_and_verify(
        replace(request, options=publication.begin()),
        builder,
        lock,
        reporter,
        exclusive=lambda: verification_lock(state, reporter),
    )
    verified = record is None or record.exit_code == 0
    if verified:
        built = publication.end(built, reporter)
    done = _outcome(
        task, BUILT if verified else UNPROVED, 0 if record is None else record.exit_code,
        digest=built.digest, place=built.pushed or built.place or built.id,
        record=None if record is None else dict(record.tree),
        log=str(built.log_file) if built.log_file else None,
    )  # fmt: skip
    if record is not None and not verified:
        done = replace(
            done,
            error=f"the image is not verified: {headline(record.tree['summary'])}, exit code {record.exit_code}",
            hint=f"envkit verify {built.place or built.id} shows why; --resume builds and verifies it again",
            details=_failures(record),
        )
    sizes = {"size_bytes": built.size, "sent_bytes": built.sent}
    figures = {name: float(value) for name, value in sizes.items() if value is not None}
    return replace(done, figures={"build_s": round(built.duration_s, 3), **figures})


def settings_of(task: BuildTask) -> Settings:
    """Return this machine's settings for a task."""
    return settings.load({"engine": task.engine, "preset": task.options.get("preset")}, os.environ, Path.cwd())


def request_of(task: BuildTask) -> BuildRequest:
    """Return the build request of a task, with this machine's settings."""
    from envkit.pipeline.building import BuildRequest  # noqa: PLC0415 - takes 0.1 s to import

    here = settings_of(task)
    plan = plan_from_json(json.loads(task.plan), f"the plan of {task.name}")
    return BuildRequest(
        # The folder of the files to copy is not part of the plan's JSON.
        plan=replace(plan, folder=str(task.options.get("folder", ""))),
        options=options_of(task, here),
        settings=here,
        engine=task.engine,
        no_lock=bool(task.options.get("no_lock")),
        verify=task.verify,
        allow_cpu=bool(task.options.get("allow_cpu")),
    )


_NOT_OPTIONS = ("no_lock", "allow_cpu", "folder", "preset")  # keys of a task that are not fields of `BuildOptions`


def options_of(task: BuildTask, here: Settings) -> BuildOptions:
    """Return the build options of a task, with this machine's mirrors and caches."""
    from envkit.pipeline.building import options_here  # noqa: PLC0415 - takes 0.1 s to import

    fields: dict[str, Any] = {key: value for key, value in task.options.items() if key not in _NOT_OPTIONS}
    # The options of a task are JSON values, so they have lists for tuples.
    fields["labels"] = tuple((name, value) for name, value in fields.get("labels", ()))
    fields["secrets"] = tuple((name, Path(value)) for name, value in fields.get("secrets", ()))
    fields["mount_from"] = tuple(fields.get("mount_from", ()))
    fields = {"network": here.get("build_network") or "auto", **fields}
    return options_here(BuildOptions(tags=task.tags, output=task.output, **fields), here, task.name, logs=_KEPT_LOGS)


def further(options: BuildOptions, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what changes an image's bytes besides plan and lock; usually empty."""
    labels = tuple(f"label {key}={value}" for key, value in sorted(options.labels))
    packed = (f"compression {options.compression}",) if options.compression != "gzip" else ()
    created = environ.get("SOURCE_DATE_EPOCH")
    return (*labels, *packed, *((f"created {created}",) if created else ()))


def _lock(task: BuildTask, request: BuildRequest, reporter: Reporter) -> Lock | None:
    from envkit.pipeline.locking import Locks  # noqa: PLC0415 - takes 0.1 s to import

    if task.lock is not None:
        return lock_from_json(json.loads(task.lock), f"the lock of {task.name}")
    if request.no_lock:
        return None
    return Locks(request.settings, task.engine, reporter).of(request.plan, request.options.base)


def _failures(record: Record) -> tuple[str, ...]:
    """Return one line for a failed run and one for each of the first failed checks that have a reason."""
    trouble = record.tree["run"]["trouble"]
    rows = [row for row in record.tree["checks"] if row["verdict"] in ("FAIL", "ERROR") and row.get("reason")]
    failures = [f"{row['id']} {row['verdict']}: {_message(row['reason'])}" for row in rows[:_NAMED]]
    return (*([_message(trouble["reason"])] if trouble else []), *failures)


def _message(reason: Any) -> str:
    return str(reason.get("message", reason) if isinstance(reason, Mapping) else reason)[:200]


def _outcome(task: BuildTask, status: str, code: int, **more: Any) -> Outcome:
    return Outcome(name=task.name, status=status, exit_code=code, worker=worker_name(), duration_s=0.0, **more)
