"""`--report KIND=FILE`: what is asked for is checked before anything runs, and written when there is a record."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envkit.cli.documents import STDOUT
from envkit.ground.errors import SurroundingsError, UsageError

if TYPE_CHECKING:
    from envkit.verify.record import Record

_SUMMARY = "GITHUB_STEP_SUMMARY"
_SUMMARY_LIMIT = 1 << 20  # bytes that GitHub keeps of one step's summary
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """One report to write. `file` may be `-`: stdout."""

    kind: str
    file: str


def report_option(command: _Command) -> _Command:
    """Add `--report` to a command; its argument is `reports`, a tuple of `Target`."""
    return click.option(
        "--report",
        "reports",
        multiple=True,
        metavar="KIND=FILE",
        callback=_targets,
        help="Write a report: json, junit, md, html or sarif; - is stdout. Repeatable.",
    )(command)


def check_reports(reports: Sequence[Target], document: str | None, *, verified: bool = True) -> None:
    """Refuse two documents on one stdout, and reports on a verification that does not take place.

    Raises:
        UsageError: more than one of `reports` and `document` is stdout, or nothing is `verified`.
    """
    if reports and not verified:
        raise UsageError("--report and --no-verify contradict each other", hint="leave one of them out")
    wanted = [f"--report {one.kind}=-" for one in reports if one.file == STDOUT]
    wanted += ["--json"] if document == STDOUT else []
    if len(wanted) > 1:
        raise UsageError(f"{' and '.join(wanted)}: stdout holds one document", hint="give the others a file")


def for_stdout(record: Record, reports: Sequence[Target]) -> bytes | None:
    """The report that is to be stdout's data, if any."""
    from envkit.report.formats import render

    return next((render(one.kind, record.tree) for one in reports if one.file == STDOUT), None)


def write_reports(record: Record, reports: Sequence[Target]) -> SurroundingsError | None:
    """Write every report that goes to a file, and GitHub's step summary where this is a step of it.

    A file that cannot be written does not keep the others from being written; the first failure is returned.
    """
    from envkit.ground.store import write_atomic
    from envkit.report.formats import render

    failed: SurroundingsError | None = None
    for one in reports:
        if one.file == STDOUT:
            continue
        try:
            write_atomic(Path(one.file), render(one.kind, record.tree))
        except OSError as error:
            at = f" ({error.filename})" if error.filename else ""
            message = f"--report {one.kind}={one.file}: {error.strerror or error}{at}"
            fault = SurroundingsError(message, hint="give --report a file in a folder that can be written")
            fault.__cause__ = error
            failed = failed or fault
    _summarise(record)
    return failed


def _summarise(record: Record) -> None:
    """Append to the step's summary; a run is not worse for a summary that cannot be written."""
    name = os.environ.get(_SUMMARY)
    if not name:
        return
    from envkit.report.markdown import render_markdown

    path = Path(name)
    try:
        taken = path.stat().st_size if path.exists() else 0
        # Over its limit, GitHub shows nothing of the whole summary.
        room = _SUMMARY_LIMIT - taken - 1
        if room > 0:
            with path.open("ab") as stream:
                stream.write(b"\n" * bool(taken) + render_markdown(record.tree, limit=room))
    except OSError as error:
        click.echo(f"note: the step summary cannot be written: {error}", file=sys.stderr)


def _targets(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[Target, ...]:
    from envkit.report.formats import KINDS

    found: list[Target] = []
    for text in given:
        kind, sign, file = text.partition("=")
        if not sign or not file:
            raise UsageError(f"--report {text!r} is not KIND=FILE", hint=f"--report html={file or 'report.html'}")
        if kind not in KINDS:
            raise UsageError(f"--report {text}: no report is called {kind!r}", hint=f"use one of {', '.join(KINDS)}")
        if file != STDOUT and Path(file).is_dir():
            raise UsageError(
                f"--report {text}: {file} is a folder", hint=f"--report {kind}={file.rstrip('/')}/report.{kind}"
            )
        if file != STDOUT and any(Path(file).resolve() == Path(one.file).resolve() for one in found):
            raise UsageError(f"--report {text}: {file} is written twice", hint="give each report a file of its own")
        found.append(Target(kind, file))
    return tuple(found)
