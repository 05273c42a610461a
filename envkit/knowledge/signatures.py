"""A signature: how a line of a log shows something.

A signature is a literal that the line must contain (case-insensitive) and, optionally, a regular expression, literals
of which one must be nearby, and an expression that excludes the line. Only lines with a literal are tested further,
so reading a log is about as fast as a text search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from envkit.ground.errors import UsageError

NEAR = 60
"""Lines before and after in which `near` is searched: the length of a traceback with its context."""

_FIELDS = {"has", "match", "near", "unless", "info"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A message that shows something. `has` and `near` are lowercase; one of `near` is at most `NEAR` lines away."""

    has: str
    match: str | None = None
    near: tuple[str, ...] = ()
    unless: str | None = None
    info: bool = False  # the program writes it with the level of information, in which others quote errors

    def fits(self, line: str) -> bool:
        """Return whether a line with `has` shows it; `near` is not tested."""
        if self.match is not None and not compiled(self.match).search(line):
            return False
        return self.unless is None or not compiled(self.unless).search(line)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a case-insensitive expression when the first line needs it."""
    return re.compile(pattern, re.IGNORECASE)


def signature(tree: Any, name: str) -> Signature:
    """Return a signature from the YAML of a row.

    Raises:
        UsageError: it has unknown fields or no literal; `name` is the row's in the message.
    """
    if isinstance(tree, str):
        tree = {"has": tree}
    if not isinstance(tree, dict) or set(tree) - _FIELDS or not isinstance(tree.get("has"), str):
        raise UsageError(f"{name}: a signature must be a string or a mapping of has, match, near, unless and info")
    return Signature(
        has=tree["has"].lower(),
        match=tree.get("match"),
        near=tuple(text.lower() for text in texts(tree.get("near"))),
        unless=tree.get("unless"),
        info=bool(tree.get("info", False)),
    )


def texts(value: Any) -> tuple[str, ...]:
    """Return a value of YAML that may be missing, one text or a list, as texts."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(line) for line in value)
