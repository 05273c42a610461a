"""Lines of styled text, and the few layouts a report is made of. Widths are in terminal cells."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.ground.text import cells, clean

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text and the name of its style; the style adds nothing that the text does not say."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def plain(line: Line) -> str:
    """The line's text, without trailing blanks."""
    return "".join(span.text for span in line).rstrip()


def wrapped(
    text: object, width: int, *, first: str, rest: str | None = None, style: str = "", first_style: str = ""
) -> list[Line]:
    """A paragraph: `first` opens its first line, `rest` (blanks by default) the others.

    A CI system reads lines that begin with `::` or `##` as commands, so no continued line begins with them.
    """
    hang = " " * cells(first) if rest is None else rest
    room = max(width, MIN_WIDTH)
    pieces = textwrap.wrap(clean(text), room, initial_indent=first, subsequent_indent=hang, break_on_hyphens=False) or [
        first
    ]
    pieces = [piece[len(first if index == 0 else hang) :] for index, piece in enumerate(pieces)]
    safe = [piece if not piece.startswith(("::", "##")) else f"| {piece}" for piece in pieces]
    opening = [Span(first, first_style), *(Span(hang) for _ in safe[1:])]
    return [(span, Span(piece, style)) for span, piece in zip(opening, safe, strict=True)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str, left: int = 1) -> list[Line]:
    """Aligned columns: the first `left` columns to the left, numbers to the right."""
    columns = [[cell[column] for cell in (head, *rows)] for column in range(len(head))]
    widths = [max(cells(cell) for cell in column) for column in columns]

    def row(values: Sequence[str]) -> str:
        padded = [
            value + " " * (width - cells(value)) if index < left else " " * (width - cells(value)) + value
            for index, (value, width) in enumerate(zip(values, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return [(Span(indent), Span(row(head), "dim")), *((Span(indent + row(item)),) for item in rows)]
