"""`envkit matrix check`, `prove` and `update`: the facts against their invariants, the wheels and new releases."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import tell
from envkit.cli.declare import Section, argument, flag, new_command, option
from envkit.cli.options import ProgressOptions, facts_option, load_facts, load_settings, progress_options
from envkit.ground.errors import UsageError
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.facts.check import Finding
    from envkit.facts.model import Facts
    from envkit.pipeline.proving import Proof, Reading
    from envkit.pipeline.updating import Update

SCHEMA = "envkit.facts-rows/1"
_QUOTE = 60  # characters of a quotation on a terminal


def json_option() -> bool:
    """Declare a field as the option `--json`."""
    return flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")


def identity_line(facts: Facts) -> str:
    """Return the identity of the facts as a line of text."""
    return f"facts version {facts.version} of {facts.collected}, digest {facts.digest:.12}"


def print_facts_json(facts: Facts, **content: Any) -> None:
    """Print a JSON document that begins with the identity of the facts."""
    document = {"schema": SCHEMA, **facts.identity(), **content}
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def counts_of(facts: Facts) -> dict[str, int]:
    """Return the number of rows of each table, and the number of sources."""
    from envkit.facts.tables import TABLES

    return {**{table.name: len(getattr(facts, table.name)) for table in TABLES}, "sources": len(facts.sources)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags:
    """The options of `envkit matrix check`."""

    online: bool = flag(Section.INPUT, "--online", help="Compare the facts with the wheels on the Python index.")
    deep: bool = flag(Section.INPUT, "--deep", help="With --online: also read machine code (20 to 45 MB per file).")
    index: str | None = option(
        Section.INPUT,
        "--index",
        type=click.Choice(("python", "pytorch")),
        help="With --online: read wheels of the Python index, or the pages of the PyTorch index.  [python]",
    )
    torch: str | None = option(
        Section.SELECTION,
        "--torch VERSION",
        shell_complete=shell_values.torches,
        help="With --online: check only this release.",
    )
    table: str | None = option(Section.SELECTION, "--table NAME", help="Show only findings in this table.")
    facts_file: str | None = facts_option(Section.INPUT)
    progress: ProgressOptions = progress_options()
    as_json: bool = json_option()


@new_command("check", CheckFlags)
def check_command(flags: CheckFlags) -> None:
    """Check every invariant of the facts and their evidence. Exit 2 and list all findings if one is violated.

    With --online, compare the facts with parts of the wheels: about 12 MB for a release that was not read before, and
    only file lists afterwards. With --index pytorch, compare the names of all files with the pages of the PyTorch index
    (ENVKIT_PYTORCH_INDEX): versions, Pythons and platforms.

    A rejected file (damaged, or not the one that the index lists) is a finding. Exit 9 if
    the index does not respond.
    """
    if (flags.deep or flags.torch or flags.index) and not flags.online:
        raise click.UsageError("--deep, --index and --torch need --online")
    if flags.deep and flags.index == "pytorch":
        raise click.UsageError("--deep reads wheels, and --index pytorch reads only pages")
    facts = load_facts(flags.facts_file)
    if flags.online:
        _online(flags, facts)
        return
    from envkit.facts.check import check
    from envkit.facts.check_tables import check_tables
    from envkit.facts.evidence import check_evidence

    evidence = [] if flags.facts_file else check_evidence(facts)  # an overlay may contradict the shipped evidence
    findings = [*check(facts), *check_tables(), *evidence]
    findings = [finding for finding in findings if flags.table is None or finding.table.endswith(flags.table)]
    _tell(facts, findings, as_json=flags.as_json)


def _tell(facts: Facts, findings: list[Finding], *, as_json: bool) -> None:
    counts = counts_of(facts)
    if as_json:
        rows = [{"table": f.table, "row": f.row, "field": f.field, "what": f.what} for f in findings]
        print_facts_json(facts, clean=not findings, tables=counts, findings=rows)
    elif findings:
        for finding in findings:
            click.echo(str(finding))
    else:
        sourced = counts.pop("sources")
        click.echo(f"clean: {sum(counts.values())} rows in {len(counts)} tables, {sourced} sources")
        click.echo(identity_line(facts))
    if findings:
        raise click.exceptions.Exit(2)


def _online(flags: CheckFlags, facts: Facts) -> None:
    from envkit.ground.text import neutral
    from envkit.pipeline.proving import check_online, check_pages

    settings = load_settings({"facts": flags.facts_file})
    proofs: tuple[Reading, ...]
    reporter = flags.progress.reporter()
    with closing(reporter):
        if flags.index == "pytorch":
            proofs, traffic = check_pages(facts, settings, reporter, torch=flags.torch)
        else:
            proofs, traffic = check_online(facts, settings, reporter, torch=flags.torch, deep=flags.deep)
    wrong = [
        str(difference)
        for proof in proofs
        for difference in proof.differences
        if flags.table in (None, difference.table)
    ]
    wrong += [text for proof in proofs for text in proof.refused]
    if flags.as_json:
        print_facts_json(
            facts, clean=not wrong, requests=traffic.requests, bytes=traffic.received,
            proofs=[proof.to_json() for proof in proofs],
        )  # fmt: skip
    else:
        for line in wrong:
            click.echo(neutral(line))
        unit = "folders" if flags.index == "pytorch" else "releases"
        click.echo(_summary(proofs, unit, len(wrong), traffic), err=bool(wrong))
    if wrong:
        raise click.exceptions.Exit(2)


def _summary(proofs: tuple[Reading, ...], unit: str, wrong: int, traffic: Any) -> str:
    values = sum(len(proof.compared) for proof in proofs)
    refused = sum(len(proof.refused) for proof in proofs)
    result = f"{wrong - refused} differ from the facts" if wrong else "all match the facts"
    result += f", {refused} {'pages' if unit == 'folders' else 'files'} rejected" if refused else ""
    traffic_text = f"{traffic.requests} requests, {shown_size(traffic.received)}"
    return f"{len(proofs)} {unit}, {values} values read, {result}; {traffic_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveFlags:
    """The options of `envkit matrix prove`."""

    what: str = argument(metavar="torch==VERSION|FILE.whl")
    deep: bool = flag(
        Section.INPUT, "--deep", help="Also read the machine code in libtorch_cuda.so (20 to 45 MB per file)."
    )
    as_overlay: bool = flag(Section.OUTPUT, "--as-overlay", help="Print the rows as YAML for --facts.")
    facts_file: str | None = facts_option(Section.INPUT)
    as_json: bool = json_option()


@new_command("prove", ProveFlags)
def prove_command(flags: ProveFlags) -> None:
    """Compare the facts about a torch release with its wheels.

    Reads parts of the wheels on the Python index (about 15 MB per release), or one local wheel. Nothing in them is
    executed. Exit 2 if a value differs from the facts.

    \b
    envkit matrix prove torch==2.15.0
    envkit matrix prove ./torch-2.9.0-cp312-cp312-linux_x86_64.whl --as-overlay > mine.yaml
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.ground.progress import Silent
    from envkit.pipeline.proving import prove

    if flags.as_overlay and flags.as_json:
        raise click.UsageError("--as-overlay and --json contradict each other")
    facts = load_facts(flags.facts_file)
    proof = prove(flags.what, facts, load_settings({"facts": flags.facts_file}), Silent(), deep=flags.deep)
    if flags.as_overlay:
        from envkit.evidence.overlay import text_of

        click.echo(text_of([proof.proved.release], proof.proved.rows, facts), nl=False)
        return
    if flags.as_json:
        print_facts_json(facts, proof=proof.to_json())
    else:
        _show_proof(proof)
    if proof.differences:
        raise click.exceptions.Exit(2)


def _show_proof(proof: Proof) -> None:
    from envkit.cli.output import show_table
    from envkit.evidence.compare import DIFFERENT, MISSING, shown
    from envkit.ground.text import fitted, neutral

    marks = {DIFFERENT: "DIFFERENT", MISSING: "NO ROW"}
    rows = [
        (
            comparison.evidence.row, comparison.evidence.field, neutral(shown(comparison.evidence.value)),
            "" if comparison.state == MISSING else neutral(shown(comparison.stated)), marks.get(comparison.state, ""),
            comparison.evidence.kind, fitted(neutral(comparison.evidence.quote or ""), _QUOTE),
        )
        for comparison in proof.compared
    ]  # fmt: skip
    show_table(("row", "field", "wheel", "facts", "", "from", "quotation"), rows)
    wrong = len(proof.differences)
    result = f"{wrong} differ from the facts" if wrong else "all match the facts"
    tell(f"{proof.name}: {len(rows)} values read, {result}; {proof.requests} requests, {shown_size(proof.received)}")


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
    _tell_update(update, diff, facts, flags)


def _check_day(since: str | None) -> None:
    from datetime import date

    # The clock of the index decides what is in the future: that of this machine may be wrong.
    try:
        if since is not None:
            date.fromisoformat(since)
    except ValueError as error:
        raise UsageError(f"--since: {since!r:.40} is not a date", hint="--since 2026-10-01") from error


def _check_release(torch: str | None) -> None:
    from packaging.version import InvalidVersion, Version

    try:
        if torch is not None:
            Version(torch)
    except InvalidVersion as error:
        raise UsageError(f"--torch: {torch!r:.40} is not a release", hint="--torch 2.7.1") from error


def _check_target(path: Path) -> None:
    """Refuse what cannot be written before anything is downloaded: a link, a pipe, a folder, a missing folder."""
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


def _tell_update(update: Update, diff: str, facts: Facts, flags: UpdateFlags) -> None:
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
    tell(f"{releases}; {done}; {update.requests} requests, {shown_size(update.received)}")
