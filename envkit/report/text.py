"""The report people read, as text: with color for a terminal, without for everything else."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from envkit.report.layout import report_lines
from envkit.report.lines import Line, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

STYLES = {
    "PASS": "bold green",
    "WARN": "bold yellow",
    "FAIL": "bold red",
    "ERROR": "bold magenta",
    "INCONCLUSIVE": "yellow",
    "NOT_VERIFIED": "bold yellow",
    "bold": "bold",
    "dim": "dim",
}


def render_text(record: Mapping[str, Any], *, width: int = 80, color: bool = False, place: str | None = None) -> str:
    """A record (`envkit.verify/1`) as text of at most `width` columns, with a final newline.

    Color only repeats what the words say. `place` is where the record is kept, for the last line.
    """
    lines = report_lines(record, width=width, place=place)
    if not color:
        return "\n".join(plain(line) for line in lines) + "\n"
    return _colored(lines)


def _colored(lines: list[Line]) -> str:
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415

    buffer = io.StringIO()
    console = Console(
        file=buffer, force_terminal=True, color_system="standard", width=10_000, highlight=False, legacy_windows=False
    )
    for line in lines:
        text = Text()
        for span in line:
            text.append(span.text, STYLES.get(span.style))
        text.rstrip()
        console.print(text, soft_wrap=True)
    return buffer.getvalue()
