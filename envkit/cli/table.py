"""One table on stdout: ruled on a terminal that is wide enough, aligned plain text elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click

from envkit.ground.text import neutral


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows of text under their column names; a column that is empty everywhere is left out."""
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    names = [columns[place] for place in kept]
    cells = [[neutral(row[place]) for place in kept] for row in rows]
    lines = aligned([names, *cells])
    if sys.stdout.isatty() and max(map(len, lines)) + 2 <= shutil.get_terminal_size().columns:
        _ruled(names, cells, title)
        return
    if title:
        click.echo(title)
    for line in lines:
        click.echo(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, every column as wide as its widest cell, two spaces apart; the last column is not padded."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _ruled(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    import os

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True) for cell in row))
    Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False).print(table)
