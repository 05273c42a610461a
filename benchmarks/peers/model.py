"""The questions as questions.yaml has them, what a run of them found, and who answered first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml

FILE = Path(__file__).with_name("questions.yaml")
SCHEMA = "envkit.peers/1"
OWN = "envkit"
_SLOWER_BY, _SLOWER_S = 2.0, 1.0  # what a person notices: twice as long, and a second more


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, the package that has it, and what it is for."""

    name: str
    package: str
    does: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one tool answers: `unrun` says why its commands are not run here, '' where they are."""

    commands: tuple[str, ...]
    control: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unrun: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question: `files` and `check` name functions of places.py and checks.py."""

    id: str
    asks: str
    right: str
    files: str
    check: str
    lacks: str
    answers: Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Ran:
    """One command that ended."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool made of a question: `wrong` is '' for a right answer, `seconds` None where it was not run."""

    steps: int
    seconds: float | None
    wrong: str

    @property
    def counts(self) -> bool:
        """Whether it is right, or counts as right because it could not be run."""
        return not self.wrong


def load(path: Path = FILE) -> tuple[tuple[Tool, ...], tuple[Question, ...]]:
    """The tools and the questions, in the order of the file.

    Raises:
        UsageError: the file is not strict YAML.
        ValueError: it has another schema, or an answer of a tool that is not listed.
    """
    tree: Any = strictyaml.read_file(path)
    if tree["schema"] != SCHEMA:
        raise ValueError(f"{path}: schema {tree['schema']}, not {SCHEMA}")
    tools = tuple(Tool(name, row["package"], row["does"]) for name, row in tree["tools"].items())
    questions = tuple(_question(row) for row in tree["questions"])
    known = {tool.name for tool in tools}
    if unknown := {name for one in questions for name in one.answers} - known:
        raise ValueError(f"{path}: no such tool: {', '.join(sorted(unknown))}")
    return tools, questions


def _question(row: Mapping[str, Any]) -> Question:
    texts = {key: row.get(key, "") for key in ("id", "asks", "right", "files", "check", "lacks")}
    return Question(**texts, answers={name: _answer(given) for name, given in row["answers"].items()})


def _answer(row: Mapping[str, Any]) -> Answer:
    lists = {key: tuple(row.get(key, ())) for key in ("commands", "control")}
    return Answer(**lists, env=row.get("env", {}), unrun=row.get("unrun", ""), note=row.get("note", ""))


def place(results: Mapping[str, Result]) -> str:
    """Where envkit is among those that are right: 'alone', 'first', 'equal', 'behind', or 'nobody'.

    Fewer commands win. Seconds decide between equal numbers of commands, where a person notices the difference.
    """
    others = [one for name, one in results.items() if name != OWN and one.counts]
    own = results.get(OWN)
    if own is None or not own.counts:
        return "behind" if others else "nobody"
    if not others:
        return "alone"
    best = min(others, key=lambda one: (one.steps, one.seconds is None, one.seconds or 0.0))
    if own.steps != best.steps:
        return "first" if own.steps < best.steps else "behind"
    return "behind" if _slower(own, best) else "first" if _slower(best, own) else "equal"


def _slower(one: Result, other: Result) -> bool:
    if one.seconds is None or other.seconds is None:
        return False
    return one.seconds > _SLOWER_BY * other.seconds and one.seconds > other.seconds + _SLOWER_S


def well_placed(places: Sequence[str]) -> int:
    """In how many of the questions envkit is first or equal."""
    return sum(one in {"alone", "first", "equal"} for one in places)
