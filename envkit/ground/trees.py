"""JSON and TOML that someone else may have written, as trees of values that every machine reads alike.

Numbers are finite, integers have at most 1,000 bits, texts are valid Unicode, and lists and tables are nested at
most `MAX_DEPTH` deep. Files are opened by `envkit.ground.foreign`; YAML is read by `envkit.ground.strictyaml`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envkit.ground import canonical, foreign
from envkit.ground.errors import EnvkitError, UsageError

MAX_DEPTH = 64
"""Levels of lists and tables in JSON and TOML, as in YAML: far below Python's recursion limit."""
_MAX_BITS = 1000  # of an integer, below `canonical.LARGEST`
_MAX_DOTS = 64  # parts of one key of TOML; the parser needs the square of their number
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# What TOML's dots are counted between: texts and comments whole, and each character that ends a key.
_TOML = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?|\'\'\'(?:[^\']|\'(?!\'\'))*+(?:\'\'\')?|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?'
    r"|#[^\n]*+|(?P<dot>\.)|(?P<end>[,=\n\[\]{}])",
    re.DOTALL,
)


def from_json(
    data: bytes | str,
    where: str,
    *,
    unique: bool = False,
    surrogates: bool = False,
    error: type[EnvkitError] = UsageError,
    hint: str | None = None,
) -> Any:
    """Return the tree of a JSON text: numbers are finite (`envkit.ground.canonical.parse`), texts are valid Unicode.

    Args:
        data: the text; bytes are UTF-8.
        where: its name in errors.
        unique: refuse a key that is given twice, of which parsers use the first or the last.
        surrogates: allow texts with half of a surrogate pair, which no file or terminal can have.
        error: the class of the error.
        hint: its hint.

    Raises:
        EnvkitError: it is not such a text, or deeper than `MAX_DEPTH`.
    """
    try:
        source = data if isinstance(data, str) else data.decode("utf-8-sig")
        tree = canonical.parse(source, object_pairs_hook=_without_duplicates if unique else None)
        _check_depth(tree)
        if not surrogates and _SURROGATE.search(source):
            _check_leaves(tree)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where} is not JSON: {_reason(problem)}", hint=hint) from problem
    return tree


def from_json_file(
    path: Path,
    most: int,
    *,
    root: Path | None = None,
    unique: bool = False,
    error: type[EnvkitError] = UsageError,
    hint: str | None = None,
) -> Any:
    """Return the tree of a JSON file of at most `most` bytes: `foreign.read` and `from_json`.

    Raises:
        EnvkitError: as these.
    """
    data = foreign.read(path, most, root=root, error=error, hint=hint)
    return from_json(data, str(path), unique=unique, error=error, hint=hint)


def from_toml(
    source: str, where: str, *, error: type[EnvkitError] = UsageError, hint: str | None = None
) -> dict[str, Any]:
    """Return the tree of a TOML text: numbers are finite, and it has at most `MAX_DEPTH` levels.

    Raises:
        EnvkitError: it is not such a text.
    """
    import tomllib  # noqa: PLC0415 - takes milliseconds, and most folders have no settings file

    try:
        _check_dots(source)
        tree = tomllib.loads(source, parse_float=_finite)
        _check_depth(tree)
        _check_leaves(tree)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: {_reason(problem)}", hint=hint) from problem
    return tree


def _finite(number: str) -> float:
    value = float(number.replace("_", ""))
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is not a finite number")
    return value


# JSON parsers use the first or the last of two equal keys, so what a reviewer reads might not be what is used.
def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.80} is given twice")
    return table


def _check_depth(tree: Any) -> None:
    """Raise ValueError if the lists and tables of a tree have more than `MAX_DEPTH` levels."""
    level, depth = _inner([tree]), 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        level = _inner([item for node in level for item in (node.values() if isinstance(node, dict) else node)])


def _inner(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _check_leaves(tree: Any) -> None:
    """Raise ValueError for a text with half of a surrogate pair, and for an integer of hundreds of digits."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError("a text has half of a surrogate pair")
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise ValueError(f"an integer of {value.bit_length()} bits")


def _check_dots(source: str) -> None:
    if source.count(".") <= _MAX_DOTS:
        return
    dots = 0
    for token in _TOML.finditer(source):
        if token["dot"]:
            dots += 1
            if dots > _MAX_DOTS:
                line = source.count("\n", 0, token.start()) + 1
                raise ValueError(f"a key has more than {_MAX_DOTS} parts (at line {line})")
        elif token["end"]:
            dots = 0


def _reason(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return f"nested deeper than {MAX_DEPTH} levels"
    # Python's own message about long integers speaks of a function that a user cannot call.
    if "integer string conversion" in str(problem):
        return "an integer of more than 4300 digits"
    if isinstance(problem, UnicodeDecodeError):
        return f"byte 0x{problem.object[problem.start]:02x} at {problem.start} is not UTF-8"
    return str(problem)
