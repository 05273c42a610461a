"""`envkit matrix prove`: what the files of a torch release prove, beside what the facts say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envkit.cli.console import tell
from envkit.cli.declare import Section, new_command, option
from envkit.cli.matrix_options import json_option, print_facts_json
from envkit.cli.options import facts_in, load_facts

if TYPE_CHECKING:
    from envkit.pipeline.proving import Proof

_QUOTE = 60  # characters of a quotation on a terminal


@new_command("prove")
@click.argument("what", metavar="torch==VERSION|FILE.whl")
@option(
    Section.INPUT, "--deep", is_flag=True, help="Also read the machine code in libtorch_cuda.so (20 to 45 MB a file)."
)
@option(Section.OUTPUT, "--as-overlay", is_flag=True, help="Print the rows as YAML for --facts.")
@facts_in(Section.INPUT)
@json_option
def prove_command(what: str, *, deep: bool, as_overlay: bool, facts_file: str | None, as_json: bool) -> None:
    """Show what the files of a torch release prove, beside what the facts say.

    Reads parts of the wheels on the Python index (about 15 MB for a release), or one wheel of this machine. Nothing in
    them is executed. Exit 2 if a value differs from the facts.

    \b
    envkit matrix prove torch==2.15.0
    envkit matrix prove ./torch-2.9.0-cp312-cp312-linux_x86_64.whl --as-overlay > mine.yaml
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.cli.options import load_settings
    from envkit.ground.progress import Silent
    from envkit.pipeline.proving import prove

    if as_overlay and as_json:
        raise click.UsageError("--as-overlay and --json contradict each other")
    facts = load_facts(facts_file)
    proof = prove(what, facts, load_settings({"facts": facts_file}), Silent(), deep=deep)
    if as_overlay:
        from envkit.evidence.overlay import text_of

        click.echo(text_of([proof.proved.release], proof.proved.rows, facts), nl=False)
        return
    if as_json:
        print_facts_json(facts, proof=proof.to_json())
    else:
        _show(proof)
    if proof.differences:
        raise click.exceptions.Exit(2)


def _show(proof: Proof) -> None:
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
    show_table(("row", "field", "proved", "facts", "", "from", "quotation"), rows)
    wrong = len(proof.differences)
    said = f"{wrong} differ from the facts" if wrong else "all as the facts say"
    tell(f"{proof.name}: {len(rows)} values proved, {said}; {proof.requests} requests, {proof.received / 1e6:.1f} MB")
