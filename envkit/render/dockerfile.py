"""Parse a Dockerfile as Docker does, into instructions with line numbers, and report ambiguous lines.

The lint relies on this parser, so it has to see what a builder will see: lines are continued by a backslash and joined
without a blank, comments and empty lines within an instruction are dropped, a keyword ends at any blank, flags and
names lose quotes and escapes. Lines that builders parse differently, or that this parser does not support, become a
`Problem`, which is always an error. tests/engines/test_lint_buildkit.py compares it with BuildKit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field

from envkit.render import words

KEYWORDS = frozenset(
    ("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER",
     "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR")
)  # fmt: skip
# The variables that BuildKit sets in a stage FROM scratch.
_SCRATCH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_BLANKS = re.compile(r"[\t\v\f\r ]+")
_CONTINUED = re.compile(r"\\[ \t]*$")
# Engines before 23 continue a line after two backslashes as after one; later ones do not.
_TWICE = re.compile(r"\\\\[ \t]*$")
# `RUN <<EOF`, `COPY <<'check.py' /usr/share/`, `RUN 3<<-"EOF" cat`
_HEREDOC = re.compile(r"(?:^|\s)[0-9]*<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2(?=\s|$)")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. `text` has the arguments after keyword and flags, with joined lines."""

    line: int  # of its first line, from 1
    end: int  # of its last line, heredocs included
    keyword: str  # upper case
    written: str  # the keyword as in the file
    flags: tuple[str, ...]  # without quotes
    text: str
    stage: int  # 0 for the first FROM; -1 before it
    pairs: tuple[tuple[str, str], ...] = ()  # of an ENV or LABEL, resolved
    fault: str = ""  # why the pairs cannot be parsed; `pairs` is empty then
    heredocs: tuple[str, ...] = ()  # contents of its heredocs

    @property
    def script(self) -> str:
        """The text and the heredocs of a RUN."""
        return "\n".join((self.text, *self.heredocs))


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that builders refuse or parse differently."""

    line: int
    message: str


class _ScratchVariables(dict[str, str]):
    """The variables of a stage FROM scratch. It inherits none, so an unknown variable is empty."""

    def __missing__(self, name: str) -> str:
        return ""


@dataclass(slots=True)
class Stage:
    """The settings of a stage's image, including those inherited from another stage of the file."""

    name: str
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed Dockerfile: instructions, comments with their lines, problems, and the settings of its image."""

    instructions: tuple[Instruction, ...]
    comments: tuple[tuple[int, str], ...]
    source: str
    problems: tuple[Problem, ...] = ()
    image: Stage = field(default_factory=lambda: Stage(""))  # the last stage

    def of(self, *keywords: str) -> list[Instruction]:
        """Return the instructions with one of these keywords, in order."""
        return [item for item in self.instructions if item.keyword in keywords]

    @property
    def last_stage(self) -> int:
        """The index of the stage that becomes the image."""
        return max((item.stage for item in self.instructions), default=-1)

    def final(self, *keywords: str) -> list[Instruction]:
        """Return the instructions of the last stage with one of these keywords."""
        return [item for item in self.of(*keywords) if item.stage == self.last_stage]


def parse(source: str) -> Parsed:
    """Parse a Dockerfile."""
    return _Reader(source).read()


class _Reader:
    """Parses one Dockerfile from top to bottom."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = source.split("\n")
        self._position = 0
        self._stages: list[Stage] = []
        self._problems: list[Problem] = []
        self._comments: list[tuple[int, str]] = []

    def read(self) -> Parsed:
        for number, line in enumerate(self._lines, 1):
            if bad := _CONTROL.search(line):
                self._problem(number, f"the character U+{ord(bad.group()):04X}")
            if _TWICE.search(line):
                self._problem(number, "a line that ends in two backslashes")
        instructions = tuple(self._instructions())
        image = self._stages[-1] if self._stages else Stage("")
        return Parsed(instructions, tuple(self._comments), self._source, tuple(self._problems), image)

    def _problem(self, line: int, message: str) -> None:
        self._problems.append(Problem(line, message))

    def _instructions(self) -> Iterator[Instruction]:
        while self._position < len(self._lines):
            start = self._position + 1
            text = self._joined()
            if text is not None and (item := self._instruction(start, text)):
                yield item

    def _joined(self) -> str | None:
        """Return the joined lines of the next instruction; None for a comment or an empty line."""
        line = self._lines[self._position].lstrip()
        self._position += 1
        if line.startswith("#"):
            self._comments.append((self._position, line.strip()))
            return None
        text = _CONTINUED.sub("", line)
        ends = text == line
        while not ends and self._position < len(self._lines):
            line = self._lines[self._position]
            self._position += 1
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            part = _CONTINUED.sub("", line)
            ends = part == line
            text += part
        return text if text.strip() else None

    def _instruction(self, line: int, text: str) -> Instruction | None:
        written, *rest = _BLANKS.split(text.strip(), maxsplit=1)
        # Docker lowercases keywords by Unicode's rules, which map U+212A to k; non-ASCII keywords are refused instead.
        keyword = written.upper() if written.isascii() else ""
        if keyword not in KEYWORDS:
            self._problem(line, f"{written[:60]!r} is not an instruction")
            return None
        flags, text = words.flags(rest[0] if rest else "")
        text = text.strip()
        if not text:
            self._problem(line, f"{keyword} without arguments")
            return None
        heredocs = self._heredocs(line, text) if keyword in ("RUN", "COPY", "ADD") else ()
        if keyword == "FROM":
            self._from(line, text)
        pairs: tuple[tuple[str, str], ...] = ()
        fault = ""
        stage = self._stages[-1] if self._stages else Stage("")
        if keyword in ("ENV", "LABEL"):
            try:
                pairs = tuple(words.pairs(text, stage.env))
            except words.UnreadableError as error:
                fault = str(error)
        self._set(stage, keyword, text, pairs, line)
        return Instruction(
            line=line,
            end=self._position,
            keyword=keyword,
            written=written,
            flags=flags,
            text=text,
            stage=len(self._stages) - 1,
            pairs=pairs,
            fault=fault,
            heredocs=heredocs,
        )

    def _from(self, line: int, text: str) -> None:
        image, *rest = text.split()
        name = rest[1].lower() if len(rest) == 2 and rest[0].lower() == "as" else ""  # noqa: PLR2004 - AS and a name
        if "$" in text:
            self._problem(line, "FROM depends on a variable")
        # Docker compares the names of stages without case.
        parent = next((stage for stage in self._stages if stage.name and stage.name == image.lower()), None)
        stage = Stage(name)
        if parent:
            # copy() keeps the class: a stage based on one FROM scratch has no unknown variables either.
            stage = Stage(name, copy(parent.env), dict(parent.labels), parent.user, parent.entrypoint)
        elif image == "scratch":
            stage.env = _ScratchVariables(_SCRATCH)
        self._stages.append(stage)

    def _set(self, stage: Stage, keyword: str, text: str, pairs: tuple[tuple[str, str], ...], line: int) -> None:
        if keyword == "ENV":
            stage.env.update(pairs)
        elif keyword == "LABEL":
            stage.labels.update(pairs)
        elif keyword == "USER":
            try:
                stage.user = words.resolve(text, stage.env)
            except words.UnreadableError as error:
                self._problem(line, f"USER cannot be read: {error}")
        elif keyword == "ENTRYPOINT":
            stage.entrypoint = command(text) or ["/bin/sh", "-c", text]

    def _heredocs(self, line: int, text: str) -> tuple[str, ...]:
        """Consume and return the heredocs of an instruction."""
        if "<<" not in text or command(text) is not None:
            return ()
        announced = list(_HEREDOC.finditer(text))
        if len(announced) != text.count("<<"):
            self._problem(line, "<< is not a plain heredoc such as <<EOF")
        documents = []
        for match in announced:
            dash, _, name = match.groups()
            document: list[str] = []
            while self._position < len(self._lines):
                content = self._lines[self._position]
                self._position += 1
                if (content.lstrip("\t") if dash else content) == name:
                    break
                document.append(content)
                # Engines before 23 do not support heredocs and parse these lines as instructions.
                if (_BLANKS.split(content.strip(), maxsplit=1)[0]).upper() in KEYWORDS:
                    self._problem(self._position, "a heredoc line that older engines read as an instruction")
            else:
                self._problem(line, f"the heredoc {name} is not closed")
            documents.append("\n".join(document))
        return tuple(documents)


def command(text: str) -> list[str] | None:
    """Return the words of a command in JSON form; None if it is not in that form."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return None
    return value
