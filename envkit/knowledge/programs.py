"""What schedulers, engines and tools print: states of jobs, which tool a line is from, the exceptions of Python."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError

TABLES = Path(__file__).parent / "tables"
FAILED, WELL, RUNS, WAITS = ENDS = ("failed", "well", "runs", "waits")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state of a scheduler or an engine."""

    system: str
    name: str
    ends: str  # one of ENDS
    means: str
    phrase: str | None  # in a message that ends a job
    is_alone: bool  # an everyday word, which is a state only if it stands alone
    rows: tuple[str, ...]  # ids of the failures that it shows
    sources: tuple[str, ...]

    @property
    def said(self) -> str:
        """What the state means, in one clause."""
        return f"{self.system}: {self.means}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program whose name its messages begin with."""

    prefix: str
    what: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonException:
    """An exception that Python itself defines."""

    name: str
    means: str


@cache
def exceptions() -> dict[str, PythonException]:
    """Return the exceptions by name.

    Raises:
        UsageError: the file is invalid.
    """
    listed = _tree("exceptions.yaml")["exceptions"]
    return {entry["name"]: PythonException(name=entry["name"], means=entry["means"]) for entry in listed}


def exception_in(text: str) -> PythonException | None:
    """Return the exception that a line begins with: `KeyError: 'lr'`; None for those of libraries."""
    return exceptions().get(text.partition(":")[0])


@cache
def states() -> tuple[State, ...]:
    """Return the states of all systems.

    Raises:
        UsageError: the file is invalid.
    """
    return tuple(_state(system, entry) for system in _tree("states.yaml")["systems"] for entry in system["states"])


@cache
def tools() -> tuple[Tool, ...]:
    """Return the tools, those with the longest name first.

    Raises:
        UsageError: the file is invalid.
    """
    listed = [
        Tool(prefix=entry["prefix"], what=entry["is"], source=entry["source"]) for entry in _tree("tools.yaml")["tools"]
    ]
    return tuple(sorted(listed, key=lambda tool: -len(tool.prefix)))


def alternatives(system: str, ends: str, *, alone: bool = False) -> str:
    """Return an expression for the names of a system's states that end in one way; `alone`: the everyday words."""
    names = [state.name for state in states() if (state.system, state.ends, state.is_alone) == (system, ends, alone)]
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


def phrases(system: str) -> str:
    """Return an expression for the phrases with which a system ends a job."""
    return "|".join(re.escape(state.phrase) for state in states() if state.system == system and state.phrase)


def states_in(text: str) -> tuple[State, ...]:
    """Return the states that a line names; everyday words only if they are all of it, or its value."""
    value = text.rpartition(":")[2].strip()
    return tuple(state for state in states() if (value == state.name if state.is_alone else _is_said(state, text)))


def tools_of(texts: Iterable[str]) -> tuple[Tool, ...]:
    """Return the tools whose lines these are, in order: `slurmstepd: error: pyxis: ...` is of two."""
    found: dict[str, Tool] = {}
    for text in texts:
        rest = text
        for _ in range(_MOST_PREFIXES):
            tool = next((tool for tool in tools() if _begins(rest, tool.prefix)), None)
            if tool is None:
                break
            found.setdefault(tool.prefix, tool)
            rest = rest[len(tool.prefix) :].partition(": ")[2].removeprefix("error: ").removeprefix("fatal: ")
    return tuple(found.values())


_MOST_PREFIXES = 4
_AFTER_TOOL = re.compile(r"(?:\[\d{1,10}\])?(?: {0,3}:|\.| fatal| failed| has | error| couldn)")


def _begins(text: str, prefix: str) -> bool:
    # /usr/bin/ld: cannot find -lcuda
    name = text.rpartition("/")[2] if text.startswith("/") and ":" not in text.rpartition("/")[0] else text
    return name.startswith(prefix) and _AFTER_TOOL.match(name, len(prefix)) is not None


def _is_said(state: State, text: str) -> bool:
    # Many programs print levels in brackets, and ninja prints "FAILED: main.o".
    is_level = state.name.startswith("[") and state.system.lower() not in text.lower()
    is_of_a_build = state.system == "Slurm" and text.startswith(f"{state.name}: ")
    return not is_level and not is_of_a_build and _names(state.name, text)


def _names(name: str, text: str) -> bool:
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _tree(name: str) -> dict[str, Any]:
    tree = strictyaml.read_file(TABLES / name)
    if not isinstance(tree, dict) or tree.get("schema") != "1":
        raise UsageError(f"{TABLES / name}: schema: 1 is missing", hint="begin the file with 'schema: \"1\"'")
    return tree


def _state(system: dict[str, Any], entry: dict[str, Any]) -> State:
    if entry["ends"] not in ENDS:
        raise UsageError(f"{TABLES / 'states.yaml'}: {entry['name']}: ends must be one of {', '.join(ENDS)}")
    return State(
        system=system["name"],
        name=entry["name"],
        ends=entry["ends"],
        means=entry["means"],
        phrase=entry.get("phrase"),
        is_alone=entry.get("alone", False) is True,
        rows=tuple(entry.get("rows", ())),
        sources=tuple(system["sources"]),
    )
