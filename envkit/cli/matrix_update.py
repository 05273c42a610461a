"""`envkit matrix update`: read new releases from the index into the tables of a checkout, or into an overlay."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.console import tell
from envkit.cli.declare import Section, flag, new_command, option
from envkit.cli.matrix_options import json_option, print_facts_json
from envkit.cli.options import ProgressOptions, load_facts, load_settings, progress_options

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.pipeline.updating import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFlags:
    """The options of `envkit matrix update`."""

    write: bool = flag(
        Section.OUTPUT, "--write", help="Write the tables, their evidence and the snapshot of this checkout."
    )
    since: str | None = option(
        Section.SELECTION, "--since DATE", help="Also reread releases uploaded since this date: 2026-10-01."
    )
    torch: str | None = option(Section.SELECTION, "--torch VERSION", help="Read only this release.")
    deep: bool = flag(Section.INPUT, "--deep", help="Also read machine code (20 to 45 MB per file).")
    into: str | None = option(Section.OUTPUT, "--into FILE", help="Write an overlay for --facts instead of the tables.")
    progress: ProgressOptions = progress_options()
    as_json: bool = json_option()


@new_command("update", UpdateFlags)
def update_command(flags: UpdateFlags) -> None:
    """Read new torch releases from the Python index and print the changes to the tables as a diff.

    Values come only from the wheels. Values that only documentation states are written as `null  # ask: ...`. Writing
    the tables raises the version of the facts; tables and overlays with a newer version are not overwritten.

    \b
    envkit matrix update                          print the diff
    envkit matrix update --write                  write the files in a checkout
    envkit matrix update --into new.yaml          use a release without upgrading envkit: --facts new.yaml
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.pipeline.updating import find_update

    if flags.write and flags.into:
        raise click.UsageError("--write and --into contradict each other")
    if flags.torch and flags.since:
        raise click.UsageError("--torch and --since contradict each other")
    _check_day(flags.since)
    _check_release(flags.torch)
    if flags.into:
        _check_target(Path(flags.into))
    facts = load_facts(None)
    reporter = flags.progress.reporter()
    with closing(reporter):
        update = find_update(facts, load_settings(), reporter, torch=flags.torch, since=flags.since, deep=flags.deep)
    diff = update.diff  # before the tables are written, because it compares with the files
    if flags.into and update.proved:
        _write_overlay(update, facts, Path(flags.into))
    elif flags.write:
        update.write()
    _tell(update, diff, facts, flags)


def _check_day(since: str | None) -> None:
    from datetime import date

    from envkit.ground.errors import UsageError

    # The clock of the index decides what is in the future: that of this machine may be wrong.
    try:
        if since is not None:
            date.fromisoformat(since)
    except ValueError as error:
        raise UsageError(f"--since: {since!r:.40} is not a date", hint="--since 2026-10-01") from error


def _check_release(torch: str | None) -> None:
    from packaging.version import InvalidVersion, Version

    from envkit.ground.errors import UsageError

    try:
        if torch is not None:
            Version(torch)
    except InvalidVersion as error:
        raise UsageError(f"--torch: {torch!r:.40} is not a release", hint="--torch 2.7.1") from error


def _check_target(path: Path) -> None:
    """Refuse what cannot be written before anything is downloaded: a link, a pipe, a folder, a missing folder."""
    from envkit.ground.errors import UsageError

    why = (
        "is a symbolic link"
        if path.is_symlink()
        else "is not a regular file"
        if path.exists() and not path.is_file()
        else f"cannot be written: {path.parent} is not a folder"
        if not path.parent.is_dir()
        else ""
    )
    if why:
        raise UsageError(f"--into: {path} {why}", hint="name another file: --into new.yaml")


def _write_overlay(update: Update, facts: Facts, path: Path) -> None:
    from envkit.evidence.overlay import text_of
    from envkit.facts.overlay import version_of
    from envkit.ground.errors import UsageError
    from envkit.ground.store import unusable, write_atomic

    if (made := version_of(path)) > facts.version:
        raise UsageError(
            f"{path} was made with version {made} of the facts, but this envkit has version {facts.version}",
            hint="upgrade envkit, or name another file",
        )
    text = text_of(
        [proof.release for proof in update.proved], [row for proof in update.proved for row in proof.rows], facts
    )
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise unusable(path, error, hint="name a file in a writable folder") from error


def _tell(update: Update, diff: str, facts: Facts, flags: UpdateFlags) -> None:
    if flags.as_json:
        print_facts_json(
            facts, releases=list(update.releases), files=[path.name for path in update.files], diff=diff,
            asked=list(update.asked), requests=update.requests, bytes=update.received, written=flags.write,
        )  # fmt: skip
        return
    if not flags.into and not flags.write:
        click.echo(diff, nl=False)
    releases = f"torch {', '.join(update.releases)}" if update.releases else "no new release"
    changed = ", ".join(path.name for path in update.files) or "nothing changes"
    if flags.into:
        done = f"{flags.into} {'written' if update.proved else 'not written'}"
    else:
        done = f"{'written' if flags.write else 'would change'}: {changed}"
    tell(f"{releases}; {done}; {update.requests} requests, {update.received / 1e6:.1f} MB")
