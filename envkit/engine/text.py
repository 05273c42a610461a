"""Text that came out of a container, made fit for a terminal, a log file and a CI system."""

from __future__ import annotations

import re

LINE_LIMIT = 8192
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
# Control characters but the tab, line separators, and marks that hide text or turn its direction around.
_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_CI_COMMAND = re.compile(r"(^\s*:|##?)(?=:|\[|vso\[)")


def neutral(line: str) -> str:
    """One line without terminal escapes, with other control characters written out, and harmless to CI systems.

    Lines that a CI system would obey (`::set-output`, `##[group]`, `##vso[...]`) get a space in their marker.
    Longer lines than 8192 characters are cut, and say so.
    """
    cut = len(line) - LINE_LIMIT
    if cut > 0:
        line = f"{line[:LINE_LIMIT]} [... {cut} characters cut]"
    plain = _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", _ESCAPES.sub("", line.rstrip("\r\n")))
    return _CI_COMMAND.sub(r"\1 ", plain)


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
