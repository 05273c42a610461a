"""The input and output of lint rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envkit.render.dockerfile import Parsed

Hit = tuple[int, str, str]
"""Line (0: the whole context), message, severity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A rendered build context with its parsed Dockerfile."""

    files: Mapping[str, bytes]
    parsed: Parsed
    syntax: str
    locked: bool = False

    def text(self, name: str) -> str:
        """Return a file's text; empty if the file does not exist."""
        return self.files.get(name, b"").decode("utf-8", "replace")

    def plan(self) -> dict[str, Any]:
        """Return the plan in the context; empty if there is none."""
        try:
            tree = json.loads(self.files.get("plan.json", b"{}"))
        except ValueError:
            return {}
        return tree if isinstance(tree, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A violation of a rule."""

    rule: str  # 'D9'
    line: int  # of the Dockerfile, from 1; 0 = the build context
    message: str
    severity: str  # 'error' | 'warning'

    def __str__(self) -> str:
        location = f"Dockerfile:{self.line}" if self.line else "build context"
        return f"{location}: {self.severity} {self.rule}: {self.message}"


Rule = Callable[[Context], Iterator[Hit]]


def error(line: int, message: str) -> Hit:
    """Return an error."""
    return line, message, "error"


def warning(line: int, message: str) -> Hit:
    """Return a warning."""
    return line, message, "warning"
