"""Keep a verification's record, show its report, and give the exit code that both of them name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.console import color
from envkit.cli.documents import STDOUT, write_document
from envkit.cli.reports import Target, for_stdout, write_reports
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.state import RECORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.verify.record import Record

_KEPT = 50
_MAX_WIDTH = 120
_LOG_WIDTH = 160


def publish(record: Record, state: Path | None, document: str | None = None, reports: Sequence[Target] = ()) -> int:
    """Write the record below `state`, to `document` and `reports`; print the report, return the exit code.

    With a file called "-" that document is stdout's data and the printed report goes to stderr. The report is printed
    even where a file cannot be written. Without `state` the record is not kept beside those of earlier runs.

    Raises:
        EnvironmentProblem: `document` or a report cannot be written.
    """
    from envkit.report.text import render_text

    place, unwritten = None if state is None else keep(record, state), None
    if document not in (None, STDOUT):
        place = document
        try:
            write_document(record.to_bytes(), document)
        except EnvironmentProblem as error:
            unwritten, place = error, None
    unwritten = write_reports(record, reports) or unwritten
    data = record.to_bytes() if document == STDOUT else for_stdout(record, reports)
    to_stderr = data is not None
    # A log has no edge to run over, and nobody can widen it later.
    terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
    width = min(shutil.get_terminal_size((80, 24)).columns, _MAX_WIDTH) if terminal else _LOG_WIDTH
    text = render_text(record.tree, width=width, color=color() and not to_stderr, place=place)
    _print(text, err=to_stderr)
    if data is not None:
        _print(data, err=False)
    if unwritten is not None:
        raise unwritten
    return record.exit_code


def _print(text: str | bytes, *, err: bool) -> None:
    """Print; a reader that went away (`| head`) changes nothing about the verdict and its exit code."""
    try:
        click.echo(text, nl=False, err=err, color=True)
        (sys.stderr if err else sys.stdout).flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2 if err else 1)


def keep(record: Record, state: Path) -> str | None:
    """Keep the record beside those of earlier runs; None where the state folder cannot be written."""
    folder = state / RECORDS
    started = str(record.tree["run"]["started"]).replace(":", "").replace("-", "")
    path = folder / f"{started}-{str(record.tree['run']['id'])[:8]}.json"
    try:
        record.write(path)
        for old in sorted(folder.glob("*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return str(path)
