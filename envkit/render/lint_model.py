"""Input and output of lint rules."""

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
    """A rendered build context, its Dockerfile parsed."""

    files: Mapping[str, bytes]
    parsed: Parsed
    flavour: str
    locked: bool = False

    def text(self, name: str) -> str:
        """A file's text; empty when the file does not exist."""
        return self.files.get(name, b"").decode("utf-8", "replace")

    def plan(self) -> dict[str, Any]:
        """The plan the context was rendered from; empty without one."""
        try:
            tree = json.loads(self.files.get("plan.json", b"{}"))
        except ValueError:
            return {}
        return tree if isinstance(tree, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule's complaint."""

    rule: str  # 'D9'
    line: int  # of the Dockerfile, from 1; 0 = the build context
    message: str
    severity: str  # 'error' | 'warning'

    def __str__(self) -> str:
        location = f"Dockerfile:{self.line}" if self.line else "build context"
        return f"{location}: {self.severity} {self.rule}: {self.message}"


Rule = Callable[[Context], Iterator[Hit]]


def error(line: int, message: str) -> Hit:
    """An error."""
    return line, message, "error"


def warning(line: int, message: str) -> Hit:
    """A warning."""
    return line, message, "warning"
