"""Rows as the text of the YAML tables: the style that their files have, so that a made row equals a kept one."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 120  # columns
_OTHER_TYPE = re.compile(
    r"[-+]?[0-9][0-9_]*|[-+]?(?:[0-9][0-9_]*)?\.[0-9_]*|0[xob].*|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|"
    r"~|null|true|false|yes|no|on|off|y|n|=|<<|[-+]?\.(?:inf|nan)|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?",
    re.IGNORECASE,
)
_SPECIAL_FIRST = frozenset("!&*?|>@%`\"'#,[]{}-:")
_ASK = re.compile(r"null  # ask: ")


class Ask:
    """A value that only a document knows; it is written as `null  # ask: ...` and never invented."""

    def __init__(self, what: str) -> None:
        self.what = what


def scalar(value: Any, *, flow: bool = False) -> str:
    """A scalar; a text is quoted where YAML would read it as another type or as markup."""
    if isinstance(value, Ask):
        return f"null  # ask: {value.what}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    quoted = (
        not text or _OTHER_TYPE.fullmatch(text) or text[0] in _SPECIAL_FIRST or text != text.strip()
        or ": " in text or " #" in text or text.endswith(":") or not text.isprintable()
        or (flow and any(char in text for char in ",[]{}"))
    )  # fmt: skip
    return "'" + text.replace("'", "''") + "'" if quoted else text


def _flow(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    return scalar(value, flow=True)


def fields(row: Mapping[str, Any], indent: int, flow: frozenset[str] = frozenset()) -> list[str]:
    """The lines of a mapping. Lists and the mappings named in `flow` stand on one line, other mappings below."""
    lines = []
    for name, value in row.items():
        start = f"{' ' * indent}{name}:"
        if isinstance(value, dict) and value and name not in flow:
            lines.append(start)
            lines.extend(fields(value, indent + 2, flow))
        elif isinstance(value, (dict, list, tuple)):
            lines.extend(_wrapped(f"{start} {_flow(value)}", indent + 2))
        else:
            lines.extend(_wrapped(f"{start} {scalar(value)}", indent + 2))
    return lines


def _wrapped(line: str, indent: int) -> list[str]:
    if len(line) <= WIDTH or _ASK.search(line):
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def item(row: Mapping[str, Any], indent: int, flow: frozenset[str] = frozenset()) -> list[str]:
    """The lines of a mapping as an item of a list."""
    lines = fields(row, indent + 2, flow)
    return [f"{' ' * indent}- {lines[0].lstrip()}", *lines[1:]]
