"""What `envkit verify` does besides verifying: judge a record again, keep a baseline, test the comparator itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.documents import STDOUT, write_document
from envkit.ground.errors import EnvironmentProblem, NotVerifiedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from envkit.cli.reports import Target
    from envkit.ground.progress import Reporter
    from envkit.verify.compare.launches import Subject
    from envkit.verify.record import Record
    from envkit.verify.thresholds import Thresholds


def judging_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of this module to `envkit verify`."""
    options = (
        click.option(
            "--judge", "judge", type=click.Path(path_type=Path), metavar="RECORD", help="Judge a kept record again."
        ),
        click.option(
            "--thresholds",
            default="record",
            show_default=True,
            metavar="record|shipped|FILE",
            help="What --judge judges with.",
        ),
        click.option(
            "--baseline",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Say what is slower than this file's launches.",
        ),
        click.option(
            "--write-baseline",
            "new_baseline",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Add this run to the file.",
        ),
        click.option("--reason", metavar="TEXT", help="Why the baseline changes."),
        click.option("--self-test", is_flag=True, help="Test whether timings can be compared on this machine."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def judge_file(path: Path, which: str, document: str | None, reports: Sequence[Target]) -> int:
    """Judge a record from itself alone, show it like a run, and return its exit code.

    `which` names the thresholds: `record`, `shipped` or a file.
    """
    from envkit.cli.record_output import publish
    from envkit.verify.again import judge_again, read_record

    again = judge_again(read_record(path), _table(which))
    publish(again.record, None, document, reports)
    used = {"record": "the record's own thresholds", "shipped": "the thresholds of this envkit"}.get(which, which)
    click.echo(f"judged again from the record, with {used}", err=True)
    if not again.same_rules:
        click.echo(f"note: the rules are not those of envkit {again.judged_by}, which judged it first", err=True)
    for line in again.changed:
        click.echo(f"changed: {line}", err=True)
    return again.record.exit_code


def _table(which: str) -> Thresholds | None:
    from envkit.verify import thresholds

    if which == "record":
        return None
    if which == "shipped":
        return thresholds.shipped()
    try:
        text = Path(which).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{which}: no thresholds: {error}", hint="--thresholds record|shipped|FILE") from error
    table = thresholds.parse(text, which)
    known = set(thresholds.shipped().rows)
    lacking, unread = sorted(known - set(table.rows)), sorted(set(table.rows) - known)
    if lacking:
        raise UsageError(f"{which}: no row {', '.join(lacking)}", hint="start from envkit/verify/thresholds.yaml")
    if unread:
        raise UsageError(f"{which}: no rule reads {', '.join(unread)}", hint="take these rows out")
    return table


def check_reason(new_baseline: Path | None, reason: str | None) -> str:
    """The reason for which a baseline changes; empty where none does.

    Raises:
        UsageError: a baseline is to change and no reason was given.
    """
    if new_baseline is not None and not reason:
        raise UsageError("a baseline is changed for a reason", hint='--write-baseline FILE --reason "new driver"')
    return reason or ""


def keep_baseline(path: Path, record: Record, reason: str) -> None:
    """Add a run to a baseline file, because the user said so.

    Raises:
        UsageError: nothing of the run can be added.
        EnvironmentProblem: the file cannot be written.
    """
    import getpass
    from datetime import UTC, datetime

    from envkit.verify.baseline import add_run

    today = datetime.now(UTC).date().isoformat()
    try:
        count = add_run(path, record.tree, by=getpass.getuser(), reason=reason, today=today)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror or error}") from error
    click.echo(f"baseline: {count} metrics of this run added to {path}", err=True)


def run_self_test(subject: Subject, reporter: Reporter, state: Path, document: str | None) -> int:
    """Test the comparator on this machine, show and remember the outcome; 0 when it can be relied on, else 5."""
    from envkit.verify.compare.launches import LAUNCH
    from envkit.verify.selftest import SLOWDOWN, remember, self_test

    subject = replace(subject, options=replace(subject.options, launch=LAUNCH))
    found = self_test(subject, reporter, launches=None, seed=0)
    remember(state, found)
    to_stderr = document == STDOUT
    dealt = f"{found.alarms} alarms in {found.splits} ways to deal {2 * found.launches} launches of the same image"
    lines = [
        f"A against A: {'silent' if found.silent else 'ALARM'}, {dealt}",
        f"A against A slowed {SLOWDOWN:g} times: {'noticed' if found.noticed else 'NOT NOTICED'}",
    ]
    lines += [f"  {row.key}: {row.change}, {row.interval.estimate:.2f} times" for row in found.rows if row.interval]
    if not found.silent:
        lines.append(f"timing rules only inform on this machine from now on ({found.hw}); nothing else changes")
    for line in lines:
        click.echo(line, err=to_stderr)
    write_document(found.to_json(), document)
    return 0 if found.silent and found.noticed else NotVerifiedError.exit_code
