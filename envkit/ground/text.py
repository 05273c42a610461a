"""Text that came out of a container, made fit for a terminal, a log file and a CI system."""

from __future__ import annotations

import re
import unicodedata

LINE_LIMIT = 8192  # characters; a progress bar without line ends has millions
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
# Control and format characters, surrogates, private use, and separators of lines; the tab stays.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# What CI systems read as commands: GitHub's older runner and Azure take `##[group]` and `##vso[...]` anywhere in a
# line, TeamCity `##teamcity[...]`; GitHub takes `::name::` at the start of a line. `at::native::add` is code.
# Codes such as `%0A` mean something within a command alone.
_MARKERS = re.compile(r"#(?=#+\w*\[)|^\s*:(?=:)|(?<![\w>)\]:<(,&*]):(?=:[A-Za-z][\w.-]*(?:\s[^:]*)?::)")


def defused(text: str) -> str:
    """The text with a space in every marker that a CI system would take for a command, wherever it stands."""
    if "##" not in text and "::" not in text:
        return text
    return _MARKERS.sub(lambda match: f"{match[0]} ", text)


def neutral(line: str) -> str:
    """One line without terminal escapes, with other control characters written out, and harmless to CI systems.

    Longer lines than 8192 characters are cut, and say so.
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
    """One line of a foreign text: line ends become blanks, and what could steer a terminal or a CI system goes."""
    kept = "".join(char if char.isprintable() else " " for char in str(text))
    return defused(" ".join(kept.split()))


def cells(text: str) -> int:
    """Width of a text in terminal cells: East Asian wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fitted(text: str, width: int) -> str:
    """The text, shortened with an ellipsis where it is wider than `width`."""
    if cells(text) <= width:
        return text
    kept = ""
    for char in text:
        if cells(kept + char) > width - 1:
            break
        kept += char
    return kept.rstrip() + "…"


def folded(line: str, width: int) -> list[str]:
    """A line as lines of at most `width` cells, which break between words and go on four blanks behind its indent.

    A word that is wider stays whole: it is a path, an address or a digest, and will be copied.
    """
    if cells(line) <= width:
        return [line]
    import textwrap  # noqa: PLC0415 - most lines are short, and it takes milliseconds to import

    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


class Lines:
    """Pieces of output in, whole lines out; memory stays bounded when a line never ends."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, piece: str) -> list[str]:
        """The lines that this piece completes."""
        whole = (self._rest + piece).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = whole.pop()
        if len(self._rest) > 2 * LINE_LIMIT:
            whole.append(self._rest)
            self._rest = ""
        return whole

    def rest(self) -> list[str]:
        """What stands after the last line end."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []
