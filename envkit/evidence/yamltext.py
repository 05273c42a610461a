"""YAML tables as text: write rows in the style of the tables, and edit tables in place.

Edits leave comments, order and all other lines unchanged.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

from envkit.ground import strictyaml
from envkit.ground.versions import key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FLOW = frozenset({"triton", "setuptools", "confidence", "pages", "cuda"})
"""Mappings that are on one line in the tables."""
_CPU = "cpu"
WIDTH = 120  # columns
# Plain scalars that YAML 1.1 does not read as text: 3.10 is a float, 1:30 is in base 60, `no` is a boolean.
_OTHER_TYPE = re.compile(
    r"[-+]?[0-9][0-9_]*|[-+]?(?:[0-9][0-9_]*)?\.[0-9_]*|0[xob].*|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|"
    r"~|null|true|false|yes|no|on|off|y|n|=|<<|[-+]?\.(?:inf|nan)|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?",
    re.IGNORECASE,
)
_SPECIAL_FIRST = frozenset("!&*?|>@%`\"'#,[]{}-:")
_ASK = re.compile(r"null  # ask: ")


class Ask:
    """A value that is in no file, only in a document; it is written as `null  # ask: QUESTION`."""

    def __init__(self, question: str) -> None:
        self.question = question


def scalar(value: Any, *, flow: bool = False) -> str:
    """Return a scalar; a text is quoted if YAML would read it as another type or as syntax."""
    if isinstance(value, Ask):
        return f"null  # ask: {value.question}"
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
    """Return the lines of a mapping. Lists and the mappings in `flow` are on one line, other mappings are indented."""
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
    # A comment ends with its line, so a question is never wrapped.
    if len(line) <= WIDTH or _ASK.search(line):
        return [line]
    # Only at spaces: YAML reads a line break as a space, which must not get into a word.
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def item(row: Mapping[str, Any], indent: int, flow: frozenset[str] = frozenset()) -> list[str]:
    """Return the lines of a mapping as an item of a list."""
    lines = fields(row, indent + 2, flow)
    return [f"{' ' * indent}- {lines[0].lstrip()}", *lines[1:]]


def set_fields(text: str, name: str, position: int, row: Mapping[str, Any]) -> str:
    """Replace the fields of a row that differ and return the new text.

    Fields that are missing or None in `row` stay. For example, a wheel that bundles cuDNN has no version of it in its
    metadata, which does not contradict the version from a document.

    Args:
        text: the text of the table.
        name: its file name, for messages.
        position: the index of the row in `rows`.
        row: the fields, nested ones as mappings.
    """
    tree, _ = strictyaml.read_with_places(text, name)
    assert isinstance(tree, dict)
    for path, value in _leaves(row):
        old = _at(tree["rows"][position], path)
        if value is None or isinstance(value, Ask) or _plain(value) == old:
            continue
        text = _set(text, name, ("rows", position, *path), value)
    return text


def _leaves(row: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for name, value in row.items():
        if isinstance(value, dict) and name not in FLOW:
            leaves.extend(_leaves(value, (*above, name)))
        else:
            leaves.append(((*above, name), value))
    return leaves


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    return tree


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _set(text: str, name: str, path: tuple[str | int, ...], value: Any) -> str:
    # Read again for every field, because the field before may have moved the lines.
    _, positions = strictyaml.read_with_places(text, name)
    lines = text.splitlines(keepends=True)
    if path in positions:
        start = positions[path][0] - 1
        field = str(path[-1])
        while not lines[start].lstrip(" -").startswith(f"{field}:"):  # a list may begin below its key
            start -= 1
        indent = len(lines[start]) - len(lines[start].lstrip(" -"))
        prefix = lines[start][:indent]  # may contain the dash of the row
        new_lines = fields({field: value}, indent, FLOW)
        new_lines[0] = prefix + new_lines[0][indent:]
        lines[start : _end(lines, start, indent)] = [f"{line}\n" for line in new_lines]
        return "".join(lines)
    # A new field goes to the end of its mapping.
    start = positions[path[:-1]][0] - 1
    indent = len(lines[start]) - len(lines[start].lstrip(" -"))
    end = _end(lines, start, indent - 1)
    lines[end:end] = [f"{line}\n" for line in fields({str(path[-1]): value}, indent, FLOW)]
    return "".join(lines)


def _end(lines: Sequence[str], start: int, indent: int) -> int:
    """Return the index of the first line after `start` that is not indented deeper than `indent`.

    Comments before the next field belong to that field.
    """
    end = start + 1
    while end < len(lines) and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
        end += 1
    return end


def insert(
    text: str, name: str, row: Mapping[str, Any], before: Callable[[Mapping[str, Any]], bool], *, rows: str = "rows"
) -> str:
    """Insert a row into the list `rows`, after the last row for which `before` is true, and return the new text."""
    tree, positions = strictyaml.read_with_places(text, name)
    assert isinstance(tree, dict)
    lines = text.splitlines(keepends=True)
    earlier = [index for index, other in enumerate(tree[rows]) if before(other)]
    start = positions[rows, earlier[-1] if earlier else 0][0] - 1
    insertion = _end(lines, start, 3) if earlier else start  # the dash of a row is indented by 2, its fields by 4
    lines[insertion:insertion] = [f"{line}\n" for line in item(row, 2, FLOW)]
    return "".join(lines)


def release_before(torch: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return the function that tells whether a row of torch_releases comes before a release."""
    return lambda other: key(other["torch"]) < key(torch)


def variant_before(torch: str, cuda: str, *, advertised: bool = True) -> Callable[[Mapping[str, Any]], bool]:
    """Return the function that tells whether a row of torch_cuda_variants comes before a wheel of the PyTorch index.

    Rows are sorted by torch, then advertised ones first, then by CUDA with CPU last; conda rows come at the end.
    """
    own = (key(torch), not advertised, cuda == _CPU, key(cuda) if cuda != _CPU else ())

    def is_before(other: Mapping[str, Any]) -> bool:
        if other["source"] != "pytorch":
            return False
        cpu = other["cuda"] == _CPU
        return (key(other["torch"]), not other["advertised"], cpu, () if cpu else key(other["cuda"])) < own

    return is_before
