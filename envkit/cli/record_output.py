"""The output of a verification: the printed report, the record in the state folder, documents and report files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.console import color, columns, tell
from envkit.cli.declare import Section, option, verbosity
from envkit.cli.options import STDOUT
from envkit.cli.output import write_document
from envkit.ground.errors import EnvironmentProblem, EnvkitError, UsageError

if TYPE_CHECKING:
    from envkit.verify.record import Record

_LOG_WIDTH = 160  # columns, where the output is not a terminal
_SUMMARY = "GITHUB_STEP_SUMMARY"
_SUMMARY_LIMIT = 1 << 20  # bytes that GitHub keeps of one step's summary


def publish(
    record: Record,
    state: Path | None,
    document: str | None = None,
    reports: Sequence[ReportTarget] = (),
    rows: Sequence[tuple[str, str]] = (),
) -> int:
    """Write the record below `state`, to `document` and to `reports`; print the report and return the exit code.

    What is printed is brief, with `rows` at its end; with `-v` it is every check. A document or report whose file is
    "-" goes to stdout, and the printed report to stderr. The report is printed even if a file cannot be written.
    Without `state`, the record is not kept in the state folder.

    Raises:
        EnvironmentProblem: `document` or a report cannot be written.
    """
    from envkit.report.text import render_text

    file, unwritten = None, None
    if state is not None:
        from envkit.pipeline.verification import keep_record

        file = keep_record(record, state)
    if document not in (None, STDOUT):
        file = document
        try:
            write_document(record.to_bytes(), document)
        except EnvironmentProblem as error:
            unwritten, file = error, None
    unwritten = write_reports(record, reports) or unwritten
    data = record.to_bytes() if document == STDOUT else for_stdout(record, reports)
    to_stderr = data is not None
    width = columns(sys.stderr if to_stderr else sys.stdout) or _LOG_WIDTH
    brief = not verbosity().verbose
    text = render_text(record.tree, width=width, color=color() and not to_stderr, path=file, brief=brief, rows=rows)
    _print(text, err=to_stderr)
    if data is not None:
        _print(data, err=False)
    if unwritten is not None:
        raise unwritten
    return record.exit_code


def _print(text: str | bytes, *, err: bool) -> None:
    """Print; a closed pipe (`| head`) is ignored, because it must not change the exit code of the verdict."""
    try:
        # color: the report has colors only if they are wanted, and click must not remove them.
        click.echo(text, nl=False, err=err, color=True)
        (sys.stderr if err else sys.stdout).flush()
    except BrokenPipeError:
        # Python flushes the stream again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2 if err else 1)


# Reports.


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """One report to write. `file` may be `-`: stdout."""

    kind: str
    file: str


def report_option() -> Any:
    """Declare a field, a tuple of `ReportTarget`, as the option `--report`."""
    return option(
        Section.OUTPUT,
        "--report KIND=FILE",
        multiple=True,
        callback=_targets,
        help="Write a report: json, junit, md, html or html-full (with GPU UUIDs); - is stdout. Repeatable.",
    )


def check_reports(reports: Sequence[ReportTarget], document: str | None, *, verified: bool = True) -> None:
    """Refuse more than one document on stdout, and reports without a verification.

    Raises:
        UsageError: more than one of `reports` and `document` is stdout, or there are reports although not `verified`.
    """
    if reports and not verified:
        raise UsageError("--report and --no-verify contradict each other", hint="leave one of them out")
    to_stdout = [f"--report {report.kind}=-" for report in reports if report.file == STDOUT]
    to_stdout += ["--json"] if document == STDOUT else []
    if len(to_stdout) > 1:
        raise UsageError(
            f"{' and '.join(to_stdout)}: only one document can go to stdout", hint="write the others to files"
        )


def for_stdout(record: Record, reports: Sequence[ReportTarget]) -> bytes | None:
    """Return the report that goes to stdout, if any."""
    from envkit.report.formats import render

    return next((render(report.kind, record.tree) for report in reports if report.file == STDOUT), None)


def write_reports(record: Record, reports: Sequence[ReportTarget]) -> EnvironmentProblem | None:
    """Write every report that goes to a file, and in GitHub Actions the step summary.

    If a file cannot be written, the others are still written; the first failure is returned.
    """
    from envkit.ground.store import write_atomic
    from envkit.report.formats import render

    failed: EnvironmentProblem | None = None
    for report in reports:
        if report.file == STDOUT:
            continue
        try:
            write_atomic(Path(report.file), render(report.kind, record.tree))
        except OSError as error:
            path = f" ({error.filename})" if error.filename else ""
            message = f"--report {report.kind}={report.file}: {error.strerror or error}{path}"
            problem = EnvironmentProblem(message, hint="name a file in a writable folder")
            problem.__cause__ = error  # shown with -v; `raise ... from` is too early here
            failed = failed or problem
    _summarize(record)
    return failed


def write_pages(tree: Mapping[str, Any], reports: Sequence[ReportTarget], *, done: str) -> None:
    """Write the page of a matrix (`envkit.fleet/1` or `envkit.fleet-verify/1`) to every file of `reports`.

    Raises:
        EnvironmentProblem: a file cannot be written.
    """
    if not reports:
        return
    from envkit.report.html.matrix import render_html

    page = render_html(tree)
    for report in reports:
        write_document(page, report.file, done=done)


def _summarize(record: Record) -> None:
    """Append to the step's summary; a failure to write it is only a note, because the verdict matters more."""
    name = os.environ.get(_SUMMARY)
    if not name:
        return
    from envkit.report.markdown import render_markdown

    path = Path(name)
    try:
        used = path.stat().st_size if path.exists() else 0
        # GitHub drops the whole summary if it exceeds the limit.
        available = _SUMMARY_LIMIT - used - 1
        if available > 0:
            with path.open("ab") as stream:
                stream.write(b"\n" * bool(used) + render_markdown(record.tree, limit=available))
    except OSError as error:
        tell(f"note: the step summary cannot be written: {error}")


def _targets(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[ReportTarget, ...]:
    from envkit.report.formats import KINDS

    targets: list[ReportTarget] = []
    for text in given:
        kind, sign, file = text.partition("=")
        if not sign or not file:
            raise UsageError(f"--report {text!r} is not KIND=FILE", hint=f"--report html={file or 'report.html'}")
        if kind not in KINDS:
            raise UsageError(f"--report {text}: unknown report {kind!r}", hint=f"use one of {', '.join(KINDS)}")
        if file != STDOUT and Path(file).is_dir():
            raise UsageError(
                f"--report {text}: {file} is a folder", hint=f"--report {kind}={file.rstrip('/')}/report.{kind}"
            )
        if file != STDOUT and any(Path(file).resolve() == Path(target.file).resolve() for target in targets):
            raise UsageError(f"--report {text}: {file} is used twice", hint="give each report its own file")
        targets.append(ReportTarget(kind, file))
    return tuple(targets)


# The trace.


def keep_trace(path: Path, document: Mapping[str, Any] | None, exit_code: int) -> int:
    """Write the trace in a payload's document; return `exit_code`, which is that of the run.

    Raises:
        PayloadError: the run succeeded but has no trace.
        EnvironmentProblem: the run succeeded but the file cannot be written.
    """
    from envkit.verify.trace import packed_trace, write_trace

    try:
        packed = packed_trace(document)
        try:
            write_trace(packed, path)
        except OSError as error:
            message = f"the trace cannot be written to {path}: {error.strerror or error}"
            raise EnvironmentProblem(message, hint="name a file in a writable folder") from error
    except EnvkitError as error:
        if exit_code == 0:
            raise
        click.echo(f"error: {error.message}", err=True)
        return exit_code
    tell(f"trace: {path}")
    return exit_code
