"""The questions of questions.yaml, the results of a run, and envkit's rank for each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml

FILE = Path(__file__).with_name("questions.yaml")
SCHEMA = "envkit.peers/1"
OWN = "envkit"
_SLOWER_BY, _SLOWER_S = 2.0, 1.0  # a difference that a person notices: twice as long, and a second longer


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its package on the Python index, "" if it is not there, what it does, and the page with its commands."""

    name: str
    package: str
    does: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a tool answers a question. `unrun` says why its commands are not run here, '' if they are."""

    commands: tuple[str, ...]
    control: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unrun: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question. `files` and `check` name functions of fixtures.py and checks.py; `asked` are threads that ask it."""

    id: str
    asks: str
    right: str
    files: str
    check: str
    lacks: str
    asked: tuple[str, ...]
    answers: Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Ran:
    """One command that ended."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's result for a question: `wrong` is '' for a right answer, `seconds` is None if it was not run."""

    steps: int
    seconds: float | None
    wrong: str

    @property
    def counts(self) -> bool:
        """Whether the answer is right, or counts as right because it could not be run."""
        return not self.wrong


def load(path: Path = FILE) -> tuple[tuple[Tool, ...], tuple[Question, ...]]:
    """Return the tools and the questions, in the order of the file.

    Raises:
        UsageError: the file is not strict YAML.
        ValueError: it has another schema, or an answer of a tool that is not listed.
    """
    tree: Any = strictyaml.read_file(path)
    if tree["schema"] != SCHEMA:
        raise ValueError(f"{path}: schema {tree['schema']}, not {SCHEMA}")
    tools = tuple(Tool(name, row.get("package", ""), row["does"], row["source"]) for name, row in tree["tools"].items())
    questions = tuple(_question(row) for row in tree["questions"])
    known = {tool.name for tool in tools}
    if unknown := {name for question in questions for name in question.answers} - known:
        raise ValueError(f"{path}: unknown tool {', '.join(sorted(unknown))}")
    return tools, questions


def _question(row: Mapping[str, Any]) -> Question:
    texts = {key: row.get(key, "") for key in ("id", "asks", "right", "files", "check", "lacks")}
    asked = tuple(row.get("asked", ()))
    return Question(**texts, asked=asked, answers={name: _answer(given) for name, given in row["answers"].items()})


def _answer(row: Mapping[str, Any]) -> Answer:
    lists = {key: tuple(row.get(key, ())) for key in ("commands", "control")}
    return Answer(**lists, env=row.get("env", {}), unrun=row.get("unrun", ""), note=row.get("note", ""))


def rank(results: Mapping[str, Result]) -> str:
    """Return envkit's rank among the right answers: 'alone', 'first', 'equal', 'behind', or 'nobody'.

    Fewer commands win. With equally many, seconds decide if a person notices the difference.
    """
    others = [result for name, result in results.items() if name != OWN and result.counts]
    own = results.get(OWN)
    if own is None or not own.counts:
        return "behind" if others else "nobody"
    if not others:
        return "alone"
    best = min(others, key=lambda result: (result.steps, result.seconds is None, result.seconds or 0.0))
    if own.steps != best.steps:
        return "first" if own.steps < best.steps else "behind"
    return "behind" if _slower(own, best) else "first" if _slower(best, own) else "equal"


def faster_by(results: Mapping[str, Result]) -> tuple[str, float] | None:
    """Return the right tool with as many commands as envkit that takes least time, and envkit's time divided by its.

    None if envkit's own time is not measured, its answer is wrong, or none is faster.
    """
    own = results.get(OWN)
    if own is None or not own.counts or own.seconds is None:
        return None
    times = {
        name: result.seconds
        for name, result in results.items()
        if name != OWN and result.counts and result.seconds is not None and result.steps == own.steps
    }
    name = min(times, key=times.__getitem__, default=None)
    return (name, own.seconds / times[name]) if name and times[name] < own.seconds else None


def _slower(result: Result, other: Result) -> bool:
    if result.seconds is None or other.seconds is None:
        return False
    return result.seconds > _SLOWER_BY * other.seconds and result.seconds > other.seconds + _SLOWER_S


def well_ranked(ranks: Sequence[str]) -> int:
    """Return the number of questions in which envkit is first or equal."""
    return sum(rank in {"alone", "first", "equal"} for rank in ranks)
