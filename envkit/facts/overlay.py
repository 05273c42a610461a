"""The user's own rows: a YAML file that adds rows to the facts or replaces them.

    schema: 1
    sources:
      our-index: {kind: internal, what: the wheel index of our cluster}
    builds:
      - torch: 2.7.1
        cuda: '12.6'
        source: pytorch
        ...
        refs: [our-index]

Tables and fields are those of `envkit.facts.model`; optional fields may be left out. A row with the key of an existing
row replaces it completely; any other row is added.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from envkit.facts import tables
from envkit.facts.builds import sort_key
from envkit.facts.check import Finding, check, name_of, rows_of
from envkit.facts.model import Facts
from envkit.facts.tables import Table
from envkit.ground import strictyaml
from envkit.ground.errors import Faults, UsageError
from envkit.ground.records import Check, Location, Wording, opened
from envkit.ground.text import similar

_HINT = "`envkit help facts` shows an overlay; `envkit matrix list builds --json` shows the fields"
_ABSENT: dict[str, Any] = {"advertised": True, "integrated": False, "mirrors_ended": False}
_SHOWN = 60  # characters of a value in a message


def apply(facts: Facts, path: Path) -> Facts:
    """Return the facts with the rows of the overlay file at `path`.

    Raises:
        UsageError: the file cannot be read, is not strict YAML, or has invalid rows; the first error is the message,
            the others are the details.
    """
    tree = strictyaml.read_file(path)
    faults = Faults()
    at = Location(str(path), faults, _WORDING)
    rows = _tables(tree, at)
    merged = _merge(facts, rows, _sources(tree, at), tree)
    if not faults:
        _check(merged, rows, at)
    faults.refuse(_HINT)
    return replace(merged, builds=tuple(sorted(merged.builds, key=sort_key)))


def version_of(path: Path) -> int:
    """Return the version of the facts for which an overlay was generated; 0 if the file is missing or has none."""
    try:
        tree = strictyaml.read_file(path)
    except UsageError:
        return 0
    text = tree.get("facts_version") if isinstance(tree, dict) else None
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def _merge(facts: Facts, rows: dict[str, dict[int, Any]], sources: dict[str, Any], tree: Any) -> Facts:
    changed: dict[str, Any] = {}
    for name, added in rows.items():
        table = tables.BY_NAME[name]
        by_key = {table.key_of(row): row for row in (*rows_of(facts, table), *added.values())}
        merged: Iterable[Any] = by_key.values()
        if name == "releases":
            changed[name] = {row.torch: row for row in merged}
        else:
            changed[name] = tuple(merged)
    # Over the tree, not the bytes: comments and indentation of the file do not change the digest.
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(f"{facts.digest}\n{canonical}".encode()).hexdigest()
    return replace(facts, digest=digest, sources={**facts.sources, **sources}, **changed)


def _check(facts: Facts, rows: dict[str, dict[int, Any]], at: Location) -> None:
    """Add the findings about the overlay's own rows, in the order of the file."""
    paths = {
        (name, name_of(tables.BY_NAME[name], row)): f"{name}[{index}]"
        for name, added in rows.items()
        for index, row in added.items()
    }
    by_row: dict[str, list[Finding]] = {path: [] for path in paths.values()}
    for finding in check(facts):
        by_row.get(paths.get((finding.table, finding.row or ""), ""), []).append(finding)
    for path, findings in by_row.items():
        for finding in findings:
            at.add(f"{path}.{finding.field}" if finding.field else path, finding.what)


def _suggest(key: str, known: Collection[str]) -> str:
    close = similar(key, list(known))
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


_WORDING = Wording(unknown="unknown", suggest=_suggest, suggestions=sys.maxsize, key=f"{{:.{_SHOWN}}}".format)


def _tables(tree: Any, at: Location) -> dict[str, dict[int, Any]]:
    """Return rows by table and by their index in the file; invalid rows are left out."""
    if not isinstance(tree, dict):
        at.faults.add(at.path, "the file must contain tables such as builds: and sources:")
        return {}
    if "schema" not in tree:
        # It is some other file, whose contents may be private, so nothing of it is quoted.
        at.faults.add(at.path, "schema is missing; begin the file with 'schema: 1'")
        return {}
    if tree["schema"] != "1":
        at.add("schema", f"{_shown(tree['schema'])} is not 1; begin the file with 'schema: 1'")
    opened(tree, ["schema", "facts_version", "sources", *tables.BY_NAME], at)
    return {name: _rows(table, tree[name], at) for name, table in tables.BY_NAME.items() if name in tree}


def _sources(tree: Any, at: Location) -> dict[str, Any]:
    """Return the overlay's own source rows."""
    sources = tree.get("sources", {}) if isinstance(tree, dict) and "schema" in tree else {}
    if not isinstance(sources, dict):
        at.add("sources", "is not a table of id: {kind: ..., what: ...}")
        return {}
    for name, row in sources.items():
        if not isinstance(row, dict) or not row or not all(isinstance(value, str) for value in row.values()):
            at.add(f"sources.{name:.{_SHOWN}}", "must be a table of strings such as {kind: ..., what: ...}")
    return sources


def _rows(table: Table, value: Any, at: Location) -> dict[int, Any]:
    if not isinstance(value, list):
        at.add(table.name, "is not a list of rows")
        return {}
    rows: dict[int, Any] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for index, entry in enumerate(value):
        path = f"{table.name}[{index}]"
        row = _row(table, entry, at.under(at.at(path)))
        if row is None:
            continue
        first = seen.setdefault(table.key_of(row), index)
        if first != index:
            at.add(path, f"has the same key as {table.name}[{first}]")
        rows[index] = row
    return rows


def _row(table: Table, entry: Any, at: Location) -> Any:
    if not isinstance(entry, dict):
        at.faults.add(at.path, "is not a table of fields")
        return None
    before = len(at.faults)
    opened(entry, table.columns, at)
    values: dict[str, Any] = {}
    for field in fields(table.row):
        # The model postpones the evaluation of annotations, so a type is text here: `tuple[str, ...] | None`.
        kind = str(field.type)
        if field.name in entry:
            values[field.name] = _value(entry[field.name], field.name, kind, at)
        elif field.name in _ABSENT:
            values[field.name] = _ABSENT[field.name]
        elif kind.endswith("| None"):
            values[field.name] = None
        elif kind.startswith("tuple") and field.name != "refs":
            values[field.name] = ()
        else:
            at.add(field.name, "is missing")
    return table.row(**values) if len(at.faults) == before else None


def _value(value: Any, name: str, kind: str, at: Location) -> Any:
    if (name == "cuda" and value == "cpu") or (value is None and kind.endswith("| None")):
        return None
    return _FORMS[kind.removesuffix(" | None")].read(value, at, name)


def _form(what: str, fits: Callable[[Any], bool], convert: Callable[[Any], Any]) -> Check:
    return Check(lambda value: None if fits(value) else f"{_shown(value)} is not {what}", {}, convert)


def _all(kind: type[Any]) -> Callable[[Any], bool]:
    return lambda value: all(isinstance(item, kind) for item in (value.values() if isinstance(value, dict) else value))


# The form of each type of a field in the model.
_FORMS = {
    "str": _form("text", lambda value: isinstance(value, str), str),
    "bool": _form("true or false", lambda value: isinstance(value, bool), bool),
    "int": _form("a whole number", lambda value: isinstance(value, str) and value.isascii() and value.isdigit(), int),
    "tuple[str, ...]": _form("a list of strings", lambda value: isinstance(value, list) and _all(str)(value), tuple),
    "dict[str, str]": _form("a table of strings", lambda value: isinstance(value, dict) and _all(str)(value), dict),
    "dict[str, bool]": _form("a table of booleans", lambda value: isinstance(value, dict) and _all(bool)(value), dict),
}


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
