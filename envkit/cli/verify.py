"""`envkit verify`: run the smoke benchmark inside an image, judge the result outside, and show and keep the record."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.console import StepTimer, reporter_for, tell
from envkit.cli.declare import new_command
from envkit.cli.options import STDOUT, deadline_of, load_settings, noted
from envkit.cli.output import print_json, write_document
from envkit.cli.record_output import ReportTarget, check_reports, keep_trace, publish, write_pages
from envkit.cli.verify_flags import OBSERVED_EXAMPLE, VerifyFlags
from envkit.ground.errors import EnvironmentProblem, NotVerifiedError, UsageError
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.checks.thresholds import Thresholds
    from envkit.cli.verify_flags import RunnerOptions
    from envkit.fleet.verify_matrix import Matrix
    from envkit.fleet.verify_task import Machine, Verification, VerifyTask
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.image.name import ImageName
    from envkit.pipeline.deadline import Deadline
    from envkit.pipeline.verification import VerifyRequest
    from envkit.verify.compare.launches import Subject
    from envkit.verify.record import Record


_Done = tuple["Sequence[VerifyTask]", "tuple[Verification, ...]"]


@new_command("verify", VerifyFlags)
def command(flags: VerifyFlags) -> int:
    """Run the smoke benchmark in IMAGE (default: the image that was built last) and report the result.

    IMAGE is a name or ID in an engine, a file (oci:DIR[:TAG], docker-archive:FILE[:TAG]), or an image in a registry
    (registry:HOST/NAME:TAG). Files and registries need no engine. Several images are reported in one table; with
    --scheduler, every image is verified on every GPU machine of a Dask cluster.

    Exit codes: 0 verified; 5 not verified (no GPU, no plan, inconclusive); 6 failed; 9 fault of this machine or its
    driver, or environment problem; 124 time limit.
    """
    if flags.show_schema:
        _print_schema()
        return 0
    _check_ids(flags.run)
    if flags.list_checks:
        _list_checks(flags.run)
        return 0
    document = flags.document.target()
    check_reports(flags.reports, document)
    flags.reason_to_change()
    if flags.runs_nothing:
        return _judge_ended(flags, document)
    flags.check()
    if flags.verifies_many:
        return _verify_several(flags, document)
    return _verify_one(flags, document)


def verify_python(python: str, *, allow_cpu: bool) -> int:
    """Verify a Python on this machine, print and keep the record, and return the exit code."""
    from envkit.ground.paths import state_dir
    from envkit.image.name import OnHost
    from envkit.pipeline.machine import settings_here
    from envkit.pipeline.verification import VerifyRequest, subject_of
    from envkit.pipeline.verification import verify as run_verification
    from envkit.verify.driver import Options

    request = VerifyRequest(image=OnHost(typed=python), options=Options(allow_cpu=allow_cpu, argv=tuple(sys.argv)))
    reporter = StepTimer(reporter_for("auto", verbose=False))
    with closing(reporter):
        record = run_verification(subject_of(request, noted(settings_here("host")), reporter), reporter)
    return publish(record, state_dir(), None, ())


@dataclass(slots=True)
class _Trace:
    """Keeps the payload's document, which contains the trace."""

    document: Mapping[str, Any] | None = field(default=None)

    def keep(self, document: Mapping[str, Any] | None) -> None:
        self.document = document


def _verify_one(flags: VerifyFlags, document: str | None) -> int:
    from envkit.ground.paths import state_dir
    from envkit.pipeline.machine import settings_here
    from envkit.pipeline.verification import subject_of
    from envkit.pipeline.verification import verify as run_verification

    settings, trace = noted(settings_here(flags.run.runner, flags.memory)), _Trace()
    request = _request(flags, settings, trace)
    reporter = flags.progress.reporter()
    deadline = deadline_of(flags.timeout, reporter)
    with closing(reporter), ExitStack() as until:
        with deadline.holds():
            subject = _fetched(subject_of(request, settings, reporter, until), deadline, reporter)
        if flags.self_test:
            return _self_test(subject, reporter, state_dir(), document)
        record = run_verification(subject, reporter)
    exit_code = publish(record, state_dir(), document, flags.reports)
    if flags.new_baseline is not None:
        _keep_baseline(flags.new_baseline, record, flags.reason_to_change())
    return exit_code if flags.trace_file is None else keep_trace(flags.trace_file, trace.document, exit_code)


def _request(flags: VerifyFlags, settings: Settings, trace: _Trace) -> VerifyRequest:
    """Return the request for the image that was named or built last.

    Raises:
        UsageError: no image is named and none was built on this machine, or a file cannot be read.
    """
    from envkit.pipeline.verification import VerifyRequest, named_or_last
    from envkit.plan.store import read_plan
    from envkit.verify.baseline import read_baseline
    from envkit.verify.driver import Options
    from envkit.verify.user_data import user_data

    given = read_plan(flags.plan_file) if flags.plan_file else None
    image, engine, plan = named_or_last(flags.images[0] if flags.images else None, given, settings)
    options = Options(
        allow_cpu=flags.allow_cpu,
        require_gpu=flags.require_gpu,
        timeout_s=flags.timeout,
        only=flags.run.only,
        skip=flags.run.skip,
        argv=tuple(sys.argv),
        baseline=None if flags.baseline is None else read_baseline(flags.baseline),
        on_trace=None if flags.trace_file is None else trace.keep,
        data=user_data(flags.data, flags.dataset, Path.cwd()),
    )
    return VerifyRequest(
        image=image, options=options, plan=plan, engine=engine, gpus=flags.run.gpus, tier=flags.run.tier
    )


def _fetched(subject: Subject, deadline: Deadline, reporter: Reporter) -> Subject:
    """Download the layers of a registry's image that are not cached; the run gets the rest of the time limit."""
    from envkit.image.name import InRegistry

    if not isinstance(subject.image, InRegistry):
        return subject
    reporter.step(f"fetch {subject.image}")
    subject.runner.inspect(subject.image)
    return replace(subject, options=replace(subject.options, timeout_s=deadline.left()))


def _check_ids(run: RunnerOptions) -> None:
    """Refuse unknown checks, before the image is looked up."""
    if run.only or run.skip:
        from envkit.checks.catalog import select

        select(run.tier or "quick", run.only, run.skip)


def _print_schema() -> None:
    from envkit.verify.record import schema

    print_json(schema())


def _list_checks(run: RunnerOptions) -> None:
    from envkit.checks.catalog import select

    for entry in select(run.tier or "quick", run.only, run.skip):
        click.echo(f"{entry.id}  {entry.tier:<8}  {entry.needs:<5}  {entry.title}")


def _keep_baseline(path: Path, record: Record, reason: str) -> None:
    """Add a run to a baseline file.

    Raises:
        UsageError: the run has no metric that can be added.
        EnvironmentProblem: the file cannot be written.
    """
    import getpass
    from datetime import UTC, datetime

    from envkit.verify.baseline import add_run

    today = datetime.now(UTC).date().isoformat()
    try:
        count = add_run(path, record.tree, by=getpass.getuser(), reason=reason, today=today)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written: {error.strerror or error}", hint="name a file in a writable folder"
        ) from error
    tell(f"baseline: {count} metrics of this run added to {path}")


def _self_test(subject: Subject, reporter: Reporter, state: Path, document: str | None) -> int:
    """Test whether timings are reliable on this machine, show and save the result; return 0 if they are, else 5."""
    from envkit.verify.compare.launches import LAUNCH
    from envkit.verify.selftest import SLOWDOWN, remember, self_test

    subject = replace(subject, options=replace(subject.options, launch=LAUNCH))
    result = self_test(subject, reporter, launches=None, seed=0)
    remember(state, result)
    splits = (
        f"{result.alarms} false alarms in {result.splits} splits of {2 * result.launches} launches of the same image"
    )
    lines = [
        f"A against A: {'no difference' if result.silent else 'FALSE ALARM'}, {splits}",
        f"A against A slowed {SLOWDOWN:g} times: {'detected' if result.noticed else 'NOT DETECTED'}",
    ]
    lines += [f"  {row.key}: {row.change}, {row.interval.estimate:.2f} times" for row in result.rows if row.interval]
    if not result.silent:
        lines.append(
            f"timing is unreliable on this machine ({result.hw}): timing rules are informational only from now on"
        )
    for line in lines:
        click.echo(line, err=document == STDOUT)
    write_document(result.to_json(), document)
    return 0 if result.silent and result.noticed else NotVerifiedError.exit_code


# A run that has ended: from its record, or from the log of an exported job.


def _judge_ended(flags: VerifyFlags, document: str | None) -> int:
    """Judge a saved record or the log of an exported job, and return the exit code.

    Raises:
        UsageError: options contradict each other, or a file cannot be read.
        PayloadError: the log is truncated, or belongs to another question.
    """
    flags.check_ended()
    if flags.judge is not None:
        return _judge_record(flags.judge, flags, document)
    if flags.observed is None:
        raise UsageError("--questions needs --observed, the log to judge", hint=OBSERVED_EXAMPLE)
    if flags.questions is None:
        raise UsageError("--observed needs --questions, the exported file", hint=OBSERVED_EXAMPLE)
    return _judge_log(flags.observed, flags.questions, flags, document)


def _judge_record(path: Path, flags: VerifyFlags, document: str | None) -> int:
    """Judge a record again from its own observations, and show it like a run."""
    from envkit.verify.again import judge_again, read_record

    which = flags.thresholds
    again = judge_again(read_record(path), _table(which))
    publish(again.record, None, document, flags.reports)
    used = {"record": "the record's own thresholds", "shipped": "the thresholds of this envkit"}.get(which, which)
    tell(f"judged again from the record, with {used}")
    if not again.same_rules:
        tell(f"note: the rules differ from those of envkit {again.judged_by}, which wrote the record")
    for line in again.changed:
        tell(f"changed: {line}")
    return again.record.exit_code


def _table(which: str) -> Thresholds | None:
    from envkit.checks import thresholds
    from envkit.ground import foreign

    if which == "record":
        return None
    if which == "shipped":
        return thresholds.shipped()
    try:
        text = foreign.text(Path(which))
    except UsageError as error:
        message = f"--thresholds {which} cannot be read: {error.message}"
        raise UsageError(message, hint="--thresholds record|shipped|FILE") from error
    table = thresholds.parse(text, which)
    known = set(thresholds.shipped().rows)
    missing, unread = sorted(known - set(table.rows)), sorted(set(table.rows) - known)
    if missing:
        raise UsageError(
            f"{which}: missing row {', '.join(missing)}",
            hint="start from all rows: python -m envkit.checks.thresholds > FILE",
        )
    if unread:
        raise UsageError(f"{which}: unknown row {', '.join(unread)}", hint="remove these rows")
    return table


def _judge_log(log: str, questions: Path, flags: VerifyFlags, document: str | None) -> int:
    from envkit.ground.paths import state_dir
    from envkit.verify.driver import Options
    from envkit.verify.observed import answer_of, judge_answer
    from envkit.verify.question import read_questions
    from envkit.verify.selftest import distrusted

    state = state_dir()
    answer = answer_of(_read(log), read_questions(questions))
    options = Options(
        allow_cpu=flags.allow_cpu,
        require_gpu=flags.require_gpu,
        argv=tuple(sys.argv),
        distrusted=distrusted(state),
    )
    record = judge_answer(answer, options)
    code = publish(record, state, document, flags.reports)
    tell(
        f"note: S00 to S06 are left out, because {answer.question.image} itself was not read; the payload started at "
        f"{record.tree['run']['started']}"
    )
    return code


def _read(name: str) -> bytes:
    """Return the log, up to one byte more than a payload may print, so that a longer log is recognized.

    Raises:
        UsageError: the file cannot be read.
    """
    from envkit.ground import foreign
    from envkit.verify.payload import MAX_BYTES

    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with foreign.stream(Path(name)) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--observed {name}: {error.strerror or error}", hint=OBSERVED_EXAMPLE) from error


# Several images, on this machine or on those of a cluster: a matrix of images and machines.


def _verify_several(flags: VerifyFlags, document: str | None) -> int:
    """Verify every image, show the matrix, keep the records; return the most severe exit code.

    Args:
        flags: an image that is named several times is verified once.
        document: file for the matrix as JSON; `-` is stdout.

    Raises:
        EnvironmentProblem: the cluster does not respond or has no machine to verify on, or a file cannot be written.
        UsageError: no image is named, or with a cluster, an image is not in a registry.
    """
    from envkit.fleet.verify_matrix import Matrix
    from envkit.ground.paths import state_dir

    if not flags.images:
        raise UsageError(
            "--scheduler needs the names of images",
            hint=f"envkit verify registry:HOST/NAME:TAG --scheduler {flags.scheduler}",
        )
    images, state = {image.typed: image for image in flags.images}, state_dir()
    with closing(flags.progress.reporter()) as reporter:
        if flags.scheduler is None:
            tasks, done = _here(tuple(images), flags, reporter)
        else:
            tasks, done = _on_cluster(tuple(images.values()), flags, flags.scheduler, reporter)
    matrix = Matrix(
        images=tuple(images),
        machines=tuple(dict.fromkeys(task.machine for task in tasks)),
        verifications=done,
        kept=tuple(_kept(verification, state) for verification in done),
    )
    _show_matrix(matrix, document, flags.scheduler, flags.reports)
    return matrix.exit_code


def _task(flags: VerifyFlags, image: str, machine: Machine, target: str, plan: str | None = None) -> VerifyTask:
    from envkit.fleet.verify_task import VerifyTask

    return VerifyTask(
        image=image,
        target=target,
        machine=machine,
        plan=plan,
        runner=flags.run.runner,
        gpus=flags.run.gpus,
        tier=flags.run.tier,
        allow_cpu=flags.allow_cpu,
        require_gpu=flags.require_gpu,
        timeout_s=flags.timeout,
        memory=flags.memory,
        only=flags.run.only,
        skip=flags.run.skip,
        argv=tuple(sys.argv),
    )


def _here(images: Sequence[str], flags: VerifyFlags, reporter: Reporter) -> _Done:
    import socket

    from envkit.fleet.verify_task import Machine, verify

    machine = Machine(name=socket.gethostname(), host=socket.gethostname())
    tasks, done = [_task(flags, image, machine, image) for image in images], []
    for task in tasks:
        reporter.step(f"verify {task.image}")
        done.append(verify(task, reporter))
        _report(reporter, done[-1])
    return tasks, tuple(done)


def _on_cluster(images: Sequence[ImageName], flags: VerifyFlags, scheduler: str, reporter: Reporter) -> _Done:
    from envkit.fleet.dask_pool import DaskPool
    from envkit.fleet.verify_task import machines_of, placed, subject_of, verify_all
    from envkit.ground.paths import cache_dir, state_dir
    from envkit.ground.settings import ca_file
    from envkit.registry.remote import Remote

    remote = Remote(cache_dir(), ca_bundle=ca_file(load_settings().get("ca_bundle")))
    subjects = [subject_of(image, remote, state_dir()) for image in images]
    reporter.step(f"connect to {scheduler}")

    def heard(event: tuple[str, str, Any]) -> None:
        name, kind, arguments = event
        if kind == "step":
            reporter.log(f"{name}: {arguments[0]}")
        elif kind == "note":
            reporter.note(f"{name}: {arguments[0]}")

    with DaskPool(scheduler, place=placed, note=reporter.note, on_event=heard) as pool:
        machines = machines_of(pool.machines, flags.workers, scheduler, allow_cpu=flags.allow_cpu)
        if pool.dashboard:
            reporter.note(f"dashboard: {pool.dashboard}")
        tasks = [
            _task(flags, subject.image, machine, subject.target, subject.plan)
            for subject in subjects
            for machine in machines
        ]
        reporter.step(f"verify {len(subjects)} images on {len(machines)} machines")
        return tasks, verify_all(tasks, pool, lambda done: _report(reporter, done))


def _report(reporter: Reporter, done: Verification) -> None:
    from envkit.fleet.verify_matrix import cell

    reporter.note(f"{done.image} on {done.machine}: {cell(done)} ({done.duration_s:.0f} s)")


def _kept(done: Verification, state: Path) -> str | None:
    from envkit.pipeline.verification import keep_record
    from envkit.verify.record import Record

    return None if done.record is None else keep_record(Record(done.record), state)


def _show_matrix(matrix: Matrix, document: str | None, scheduler: str | None, reports: Sequence[ReportTarget]) -> None:
    from envkit.ground.text import neutral

    to_stderr = STDOUT in (document, *(report.file for report in reports))

    lines = [*aligned([[neutral(cell) for cell in row] for row in matrix.table()])]
    lines += ["", *map(neutral, matrix.remarks())] if matrix.remarks() else []
    folder = next((str(Path(path).parent) for path in matrix.kept if path), None)
    lines += ["", f"exit code {matrix.exit_code}; {f'records: {folder}' if folder else 'no record was kept'}"]
    for line in lines:
        click.echo(line, err=to_stderr)
    tree = matrix.to_json(scheduler)
    write_document(tree, document)
    write_pages(tree, reports, done="the images were verified")
