"""A Dockerfile as instructions with line numbers: as much of its grammar as the lint needs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_FLAG = re.compile(r"--[a-z]+(?:-[a-z]+)*(?:=\S*)?")
_HEREDOC = re.compile(r"<<-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?")
_PAIR = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([^\s="]+))=(?:"((?:[^"\\]|\\.)*)"|(\S*))(?:\s+|$)')
_ESCAPE = re.compile(r"\\([\\\"$])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. `text` is what follows keyword and flags, continued lines joined by a space."""

    line: int  # of its first line, from 1
    keyword: str  # upper case
    written: str  # as it stands in the file
    flags: tuple[str, ...]
    text: str
    stage: int  # 0 for the first FROM; -1 before it
    heredoc: bool


@dataclass(frozen=True, slots=True)
class Parsed:
    """A Dockerfile: its instructions, and its comments with their lines."""

    instructions: tuple[Instruction, ...]
    comments: tuple[tuple[int, str], ...]
    source: str

    def of(self, *keywords: str) -> list[Instruction]:
        """The instructions with one of these keywords, in order."""
        return [item for item in self.instructions if item.keyword in keywords]

    @property
    def last_stage(self) -> int:
        """Number of the stage that becomes the image."""
        return max((item.stage for item in self.instructions), default=-1)

    def final(self, *keywords: str) -> list[Instruction]:
        """The instructions of the last stage with one of these keywords."""
        return [item for item in self.of(*keywords) if item.stage == self.last_stage]


def parse(source: str) -> Parsed:
    """Read a Dockerfile; what it means is not judged."""
    instructions: list[Instruction] = []
    comments: list[tuple[int, str]] = []
    stage = -1
    lines = source.split("\n")
    place = 0
    while place < len(lines):
        start, line = place, lines[place]
        place += 1
        if not line.strip():
            continue
        if line.lstrip().startswith("#"):
            comments.append((start + 1, line.strip()))
            continue
        parts: list[str] = []
        while True:
            stripped = line.rstrip()
            if not line.lstrip().startswith("#") and stripped:
                parts.append(stripped[:-1].strip() if stripped.endswith("\\") else stripped.strip())
            ends = not stripped.endswith("\\") and not line.lstrip().startswith("#")
            if ends or place >= len(lines):
                break
            line = lines[place]
            place += 1
        keyword, _, rest = " ".join(part for part in parts if part).partition(" ")
        heredoc = _HEREDOC.search(rest) if keyword.upper() in ("RUN", "COPY", "ADD") else None
        if heredoc:
            while place < len(lines) and lines[place].strip() != heredoc.group(1):
                place += 1
            place += 1
        if keyword.upper() == "FROM":
            stage += 1
        flags, text = _flags(rest.strip())
        instructions.append(
            Instruction(
                line=start + 1,
                keyword=keyword.upper(),
                written=keyword,
                flags=flags,
                text=text,
                stage=stage,
                heredoc=heredoc is not None,
            )
        )
    return Parsed(tuple(instructions), tuple(comments), source)


def pairs(text: str) -> list[tuple[str, str]] | None:
    """The pairs of an ENV or LABEL, unescaped; None if the text is not all `key=value`."""
    found: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _PAIR.match(text, place)
        if match is None:
            return None
        name = match.group(1) if match.group(1) is not None else match.group(2)
        value = match.group(3) if match.group(3) is not None else match.group(4)
        found.append((_ESCAPE.sub(r"\1", name), _ESCAPE.sub(r"\1", value)))
        place = match.end()
    return found


def command(text: str) -> list[str] | None:
    """The words of a JSON-form command; None if it is not in that form."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return None
    return value


def _flags(text: str) -> tuple[tuple[str, ...], str]:
    found: list[str] = []
    while match := _FLAG.match(text):
        found.append(match.group())
        text = text[match.end() :].lstrip()
    return tuple(found), text
