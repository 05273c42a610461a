"""`envkit matrix check` and `prove`: check the invariants of the facts, and compare the facts with wheels."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import tell
from envkit.cli.declare import Section, argument, flag, new_command, option
from envkit.cli.matrix_options import (
    counts_of,
    identity_line,
    json_option,
    print_facts_json,
)
from envkit.cli.options import ProgressOptions, facts_option, load_facts, progress_options

if TYPE_CHECKING:
    from envkit.facts.check import Finding
    from envkit.facts.model import Facts
    from envkit.pipeline.proving import Proof, Reading


_QUOTE = 60  # characters of a quotation on a terminal


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
    from envkit.cli.options import load_settings
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
    traffic_text = f"{traffic.requests} requests, {traffic.received / 1e6:.1f} MB"
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
    from envkit.cli.options import load_settings
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
    tell(f"{proof.name}: {len(rows)} values read, {result}; {proof.requests} requests, {proof.received / 1e6:.1f} MB")
