"""What became of many images: a table, the failures in full, and the document."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from envkit.cli.documents import STDOUT, write_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.fleet.cells import Expanded
    from envkit.fleet.model import Outcome


def publish(
    found: Expanded,
    outcomes: Sequence[Outcome],
    where: str,
    target: str | None,
    *,
    began: float,
    jobs: int | None,
    skip: bool,
) -> None:
    """Print the table, and write the document.

    Raises:
        EnvironmentProblem: the document cannot be written.
    """
    from envkit.cli.table import aligned
    from envkit.fleet import report
    from envkit.ground.text import neutral

    order = {cell.name: at for at, cell in enumerate(found.cells)}
    sorted_outcomes = sorted(outcomes, key=lambda one: order.get(one.name, len(order)))
    seconds = time.monotonic() - began
    rows = [report.COLUMNS, *report.rows(sorted_outcomes, found.impossible, found.cells)]
    for line in aligned([[neutral(cell) for cell in row] for row in rows]):
        click.echo(line, err=target == STDOUT)
    click.echo(f"{report.counts(sorted_outcomes, found.impossible)}, in {seconds:.0f} s", err=True)
    _tell_failures(sorted_outcomes)
    if target is None:
        return
    tree = report.document(
        found.cells, sorted_outcomes, found.impossible, where=where, duration_s=seconds, jobs=jobs, skip=skip
    )
    write_document(tree, target, done="the images are built")


def _tell_failures(outcomes: Sequence[Outcome]) -> None:
    from envkit.ground.text import neutral

    for one in outcomes:
        if one.error is None or one.status == "stopped":
            continue
        click.echo(f"\n{one.name}: {neutral(one.error)}", err=True)
        for line in one.details:
            click.echo(f"  {neutral(line)}", err=True)
        if one.log:
            click.echo(f"  log: {one.log}", err=True)
        if one.hint:
            click.echo(f"  hint: {neutral(one.hint)}", err=True)
