"""`envkit verify`: run the smoke benchmark inside an image, judge the result outside, and show and keep the record."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.console import reporter_for, tell
from envkit.cli.declare import new_command
from envkit.cli.options import STDOUT, deadline_of, noted
from envkit.cli.output import print_json, write_document
from envkit.cli.record_output import check_reports, keep_trace, publish
from envkit.cli.step_timer import StepTimer
from envkit.cli.verify_flags import VerifyFlags
from envkit.ground.errors import EnvironmentProblem, NotVerifiedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.cli.options import RunnerOptions
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.pipeline.deadline import Deadline
    from envkit.pipeline.verification import VerifyRequest
    from envkit.verify.compare.launches import Subject
    from envkit.verify.record import Record


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
        from envkit.cli.rejudge import judge_ended

        return judge_ended(flags, document)
    flags.check()
    if flags.verifies_many:
        from envkit.cli.verify_many import verify_many

        return verify_many(flags, document)
    return _verify_one(flags, document)


def verify_python(python: str, *, allow_cpu: bool) -> int:
    """Verify a Python on this machine, print and keep the record, and return the exit code."""
    from envkit.ground.paths import state_dir
    from envkit.pipeline.verification import VerifyRequest, settings_here, subject_of
    from envkit.pipeline.verification import verify as run_verification
    from envkit.verify.driver import Options

    request = VerifyRequest(image=python, options=Options(allow_cpu=allow_cpu, argv=tuple(sys.argv)))
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
    from envkit.pipeline.verification import settings_here, subject_of
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
    from envkit.image.reference import is_remote

    if not is_remote(subject.image):
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
