"""Make untrusted text, such as output of a container, safe for a terminal, a log file and a CI system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

LINE_LIMIT = 8192  # characters; a progress bar without line breaks can have millions
# Colors and cursor movements (CSI), titles and links (OSC and other strings), and escapes of two or more characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
# Control and format characters, surrogates, private use, line and paragraph separators; `neutral` keeps the tab.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# Texts that CI systems execute as commands: `##[group]` and `##vso[...]` anywhere in a line (Azure and GitHub's older
# runner), `##teamcity[...]` (TeamCity), and `::name::` at the start of a line (GitHub). `at::native::add` is code.
# Escapes such as `%0A` have a meaning only inside a command.
_MARKERS = re.compile(r"#(?=#+\w*\[)|^\s*:(?=:)|(?<![\w>)\]:<(,&*]):(?=:[A-Za-z][\w.-]*(?:\s[^:]*)?::)")


def defused(text: str) -> str:
    """Return a text with a space in every marker that a CI system would execute as a command."""
    if "##" not in text and "::" not in text:
        return text
    return _MARKERS.sub(lambda match: f"{match[0]} ", text)


def neutral(line: str) -> str:
    """Return one line without terminal escapes or CI commands; other control characters are written as hex escapes.

    A line of more than 8192 characters is cut, with a note.
    """
    cut = len(line) - LINE_LIMIT
    if cut > 0:
        line = f"{line[:LINE_LIMIT]} [... {cut} characters cut]"
    text = _ESCAPES.sub("", line.rstrip("\r\n"))
    if not text.isprintable():
        text = "".join(
            f"\\x{ord(char):02x}" if char != "\t" and unicodedata.category(char) in _HIDDEN else char for char in text
        )
    return defused(text)


def clean(text: object) -> str:
    """Return untrusted text as one line: control characters and line breaks become spaces, CI commands are defused."""
    printable = "".join(char if char.isprintable() else " " for char in str(text))
    return defused(" ".join(printable.split()))


def cells(text: str) -> int:
    """Return the width of a text in terminal cells: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fitted(text: str, width: int) -> str:
    """Return a text of at most `width` cells, shortened with an ellipsis if necessary."""
    if cells(text) <= width:
        return text
    kept = ""
    for char in text:
        if cells(kept + char) > width - 1:
            break
        kept += char
    return kept.rstrip() + "…"


def aligned(rows: Sequence[Sequence[str]], *, indent: str = "", left: int | None = None) -> list[str]:
    """Return rows as lines with aligned columns, two spaces apart; no line ends with spaces.

    Args:
        rows: the cells, those of the head included.
        indent: the beginning of each line.
        left: the number of columns that are aligned left, the others are aligned right; None = all.
    """
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]

    def padded(column: int, cell: str) -> str:
        blanks = " " * (widths[column] - cells(cell))
        return cell + blanks if left is None or column < left else blanks + cell

    return [(indent + "  ".join(padded(column, cell) for column, cell in enumerate(row))).rstrip() for row in rows]


def without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the head and the rows without columns that are empty in every row; nothing without rows."""
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return [[row[column] for column in kept] for row in (head, *rows)] if rows else []


def folded(line: str, width: int) -> list[str]:
    """Wrap a line to at most `width` cells; continuation lines are indented by four more spaces.

    Longer words are not broken: they are paths, URLs or digests that people copy.
    """
    if cells(line) <= width:
        return [line]
    import textwrap  # noqa: PLC0415 - most lines are short, and the import takes milliseconds

    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def similar(typed: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most `n` of the known words that are similar to a typed one, the most similar first.

    Args:
        typed: the word; only its first 80 characters count, because the time grows with the square of the length.
        known: the valid words.
        n: how many to return.
        cutoff: least similarity, 0 to 1; 1 = the same word.
    """
    import difflib  # noqa: PLC0415 - only errors need it

    return difflib.get_close_matches(typed[:80], list(known), n=n, cutoff=cutoff)


class Lines:
    """Splits pieces of output into lines; memory is bounded even if a line never ends."""

    def __init__(self) -> None:
        self._rest = self._last = ""  # what no line break has ended yet, and the last character

    def feed(self, piece: str) -> list[str]:
        """Return the lines that this piece completes."""
        # A carriage return ends a line at once (a redraw of a progress bar), so a line feed in the next piece does not.
        text = self._rest + (piece.removeprefix("\n") if self._last == "\r" else piece)
        self._last = piece[-1:] or self._last
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop()
        # Twice the limit, so that `neutral` still sees and reports that it cuts the line.
        if len(self._rest) > 2 * LINE_LIMIT:
            lines.append(self._rest)
            self._rest = ""
        return lines

    def rest(self) -> list[str]:
        """Return the text after the last line break, as a list of at most one line."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []
