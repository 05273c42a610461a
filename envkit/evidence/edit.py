"""Edit the text of a YAML table in place: comments, order and every other line stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.evidence import yamltext
from envkit.ground import strictyaml
from envkit.ground.versions import key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FLOW = frozenset({"triton", "setuptools", "confidence"})
"""Mappings that the tables write on one line."""
_CPU = "cpu"


def set_fields(text: str, name: str, position: int, row: Mapping[str, Any]) -> str:
    """The text with the fields of a row replaced where they differ.

    Fields that `row` lacks, or has no value for, stay: a wheel that bundles cuDNN names none in its metadata, and what
    a document says of it is not contradicted.

    Args:
        text: of the table.
        name: of its file, for messages.
        position: of the row in `rows`.
        row: the fields, nested ones as mappings.
    """
    tree, _ = strictyaml.read_with_places(text, name)
    assert isinstance(tree, dict)
    for path, value in _leaves(row):
        old = _at(tree["rows"][position], path)
        if value is None or isinstance(value, yamltext.Ask) or _plain(value) == old:
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
    _, places = strictyaml.read_with_places(text, name)
    lines = text.splitlines(keepends=True)
    if path in places:
        at = places[path][0] - 1
        field = str(path[-1])
        while not lines[at].lstrip(" -").startswith(f"{field}:"):  # a list may begin below its key
            at -= 1
        indent = len(lines[at]) - len(lines[at].lstrip(" -"))
        first = lines[at][:indent]
        made = yamltext.fields({field: value}, indent, FLOW)
        made[0] = first + made[0][indent:]
        lines[at : _end(lines, at, indent)] = [f"{line}\n" for line in made]
        return "".join(lines)
    # A field that the row did not have goes to the end of the mapping that holds it.
    line = places[path[:-1]][0] - 1
    indent = len(lines[line]) - len(lines[line].lstrip(" -"))
    end = _end(lines, line, indent - 1)
    lines[end:end] = [f"{made}\n" for made in yamltext.fields({str(path[-1]): value}, indent, FLOW)]
    return "".join(lines)


def _end(lines: Sequence[str], at: int, indent: int) -> int:
    """The first line after `at` that is not indented deeper; comments before the next field belong to that."""
    end = at + 1
    while end < len(lines) and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
        end += 1
    return end


def insert(
    text: str, name: str, row: Mapping[str, Any], before: Callable[[Mapping[str, Any]], bool], *, rows: str = "rows"
) -> str:
    """The text with a new row in the list `rows`, behind the last row that `before` says comes before it."""
    tree, places = strictyaml.read_with_places(text, name)
    assert isinstance(tree, dict)
    lines = text.splitlines(keepends=True)
    at = [index for index, other in enumerate(tree[rows]) if before(other)]
    line = places[rows, at[-1]][0] - 1 if at else places[rows, 0][0] - 1
    position = _end(lines, line, 3) if at else line
    lines[position:position] = [f"{made}\n" for made in yamltext.item(row, 2, FLOW)]
    return "".join(lines)


def release_before(torch: str) -> Callable[[Mapping[str, Any]], bool]:
    """Which rows of torch_releases come before a release."""
    return lambda other: key(other["torch"]) < key(torch)


def variant_before(torch: str, cuda: str, *, advertised: bool = True) -> Callable[[Mapping[str, Any]], bool]:
    """Which rows of torch_cuda_variants come before a wheel of the PyTorch index.

    They are sorted by torch, those that are not advertised last, then by CUDA with CPU last; conda rows come later.
    """
    own = (key(torch), not advertised, cuda == _CPU, key(cuda) if cuda != _CPU else ())

    def comes(other: Mapping[str, Any]) -> bool:
        if other["source"] != "pytorch":
            return False
        cpu = other["cuda"] == _CPU
        return (key(other["torch"]), not other["advertised"], cpu, () if cpu else key(other["cuda"])) < own

    return comes
