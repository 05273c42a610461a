"""The lists that a project's items end in, in words: what was taken over, and what was not, with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envkit.ground.errors import masked
from envkit.plan.requirements import Line, Setting, Skipped

REQUEST = ("torch", "cuda", "cudnn", "python", "os", "source", "cpu")
"""The fields of a setting that the request of a definition has."""
_MANY = 4  # rows of one reason, from which on the reason is told once


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lines that have one reason."""

    why: str
    lines: tuple[Line, ...]

    @property
    def together(self) -> bool:
        """Whether the reason is told once, for all lines."""
        return len(self.lines) >= _MANY


def grouped(rows: Iterable[Skipped]) -> list[Group]:
    """Return what is not taken over by its reasons, in the order of their first lines."""
    lines: dict[str, list[Line]] = {}
    for row in rows:
        lines.setdefault(row.why, []).append(row.line)
    return [Group(why=why, lines=tuple(found)) for why, found in lines.items()]


def lost(rows: Iterable[Skipped]) -> Iterator[str]:
    """Yield a message for each line that is left out; many with one reason share one that names the first."""
    for group in grouped(row for row in rows if not row.harmless):
        if group.together:
            yield f"{_said(group.lines[0])} and {len(group.lines) - 1} more are left out: {group.why}"
        else:
            yield from (f"{_said(line)} is left out: {group.why}" for line in group.lines)


def notes(taken: Iterable[Setting]) -> Iterator[str]:
    """Yield a message for each setting with a note; many with one note share one that names the first."""
    rows = [Skipped(line=one.line, why=one.note) for one in taken if one.note]
    for group in grouped(dict.fromkeys(rows)):
        if group.together:
            yield f"{_said(group.lines[0])} and {len(group.lines) - 1} more: {group.why}"
        else:
            yield from (f"{_said(line)}: {group.why}" for line in group.lines)


def _said(line: Line) -> str:
    return f"{line.where}: {masked(without_hashes(line.text))}"


def without_hashes(text: str) -> str:
    """Return a line of a requirements file without its hashes, of which one package may have a hundred."""
    return re.sub(r"\s+--hash[= ]\S+", "", text)


def shown(taken: Iterable[Setting]) -> list[tuple[str, str, str]]:
    """Return rows to print: the key of the definition, its value, and the line that it comes from."""
    rows = []
    for setting in taken:
        prefix = "request." if setting.field in REQUEST else ""
        value = " to ".join(json.loads(setting.value)) if setting.field == "copy" else setting.value or "any version"
        rows.append((f"{prefix}{setting.field}", value, setting.line.where))
    return rows
