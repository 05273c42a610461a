"""The sheets of a report as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.report.lines import Line, Span, clean, table, wrapped
from envkit.report.reading import Tree
from envkit.report.sheet import BUSY
from envkit.report.sheets import sheets

_INDENT = "  "


def benchmark_tables(checks: Sequence[Tree], width: int) -> list[Line]:
    """Every sheet that has a row, each under its heading."""
    lines: list[Line] = []
    for sheet in sheets(checks):
        rows = [[clean(one) for one in row] for row in sheet.rows]
        lines += [(), (Span(sheet.title, "bold"),), *table(sheet.head, rows, indent=_INDENT, left=sheet.left)]
        for note in sheet.notes:
            lines += wrapped(note, width, first=_INDENT)
        for advice in sheet.advice:
            lines += wrapped(advice, width, first=f"{_INDENT}-> ")
        if sheet.noisy:
            lines += wrapped(BUSY, width, first=_INDENT, style="dim")
    return lines
