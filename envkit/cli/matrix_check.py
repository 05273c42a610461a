"""`envkit matrix check`: the invariants of the facts, their evidence, and with --online the files themselves."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, new_command, option
from envkit.cli.matrix_options import (
    counts_of,
    identity_line,
    json_option,
    print_facts_json,
)
from envkit.cli.options import ProgressOptions, facts_in, gathered, group, load_facts, progress_options

if TYPE_CHECKING:
    from envkit.facts.check import Finding
    from envkit.facts.model import Facts
    from envkit.pipeline.proving import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags:
    """The options of `envkit matrix check`."""

    online: bool
    deep: bool
    torch: str | None
    table: str | None
    facts_file: str | None
    progress: ProgressOptions = group(ProgressOptions)
    as_json: bool


@new_command("check")
@option(Section.INPUT, "--online", is_flag=True, help="Hold the facts against the files of the Python index.")
@option(Section.INPUT, "--deep", is_flag=True, help="With --online: also read machine code (20 to 45 MB a file).")
@option(
    Section.SELECTION,
    "--torch",
    metavar="VERSION",
    shell_complete=shell_values.torches,
    help="With --online: only this release.",
)
@option(Section.SELECTION, "--table", metavar="NAME", help="Only findings of this table.")
@facts_in(Section.INPUT)
@progress_options()
@json_option
@gathered(CheckFlags)
def check_command(flags: CheckFlags) -> None:
    """Check every invariant of the facts and their evidence; exit 2 with all findings when one is broken.

    With --online, parts of the wheels are read and compared with the facts: about 12 MB for a release that was not
    read before, and only file lists afterwards. A file that is refused (damaged, or not the one that the index lists)
    is one of the findings. Exit 9 if the index does not answer.
    """
    if (flags.deep or flags.torch) and not flags.online:
        raise click.UsageError("--deep and --torch need --online")
    facts = load_facts(flags.facts_file)
    if flags.online:
        _online(flags, facts)
        return
    from envkit.facts.check import check
    from envkit.facts.check_tables import check_tables
    from envkit.facts.evidence import check_evidence

    own = [] if flags.facts_file else check_evidence(facts)  # an overlay may say otherwise
    findings = [*check(facts), *check_tables(), *own]
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
    from envkit.cli.options import load_settings
    from envkit.ground.text import neutral
    from envkit.pipeline.proving import check_online

    reporter = flags.progress.reporter()
    with closing(reporter):
        proofs, traffic = check_online(
            facts, load_settings({"facts": flags.facts_file}), reporter, torch=flags.torch, deep=flags.deep
        )
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
        click.echo(_summary(proofs, len(wrong), traffic), err=bool(wrong))
    if wrong:
        raise click.exceptions.Exit(2)


def _summary(proofs: tuple[Proof, ...], wrong: int, traffic: Any) -> str:
    values = sum(len(proof.compared) for proof in proofs)
    refused = sum(len(proof.refused) for proof in proofs)
    said = f"{wrong - refused} differ from the facts" if wrong else "all as the facts say"
    said += f", {refused} files refused" if refused else ""
    read = f"{traffic.requests} requests, {traffic.received / 1e6:.1f} MB"
    return f"{len(proofs)} releases, {values} values proved, {said}; {read}"
