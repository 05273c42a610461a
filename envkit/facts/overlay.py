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
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from envkit.facts import tables
from envkit.facts.builds import sort_key
from envkit.facts.check import check, name_of, rows_of
from envkit.facts.model import Facts
from envkit.facts.tables import Table
from envkit.ground import strictyaml
from envkit.ground.errors import UsageError, shown
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
    faults: list[str] = []
    reader = _Reader(faults)
    rows = reader.tables(tree)
    merged = _merge(facts, rows, reader.sources(tree), tree)
    if not faults:
        faults.extend(_invalid(merged, rows))
    if faults:
        messages = [f"{path}: {fault}" for fault in faults]
        raise UsageError(messages[0], hint=_HINT, details=shown(messages[1:]))
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


def _invalid(facts: Facts, rows: dict[str, dict[int, Any]]) -> list[str]:
    """Return the findings about the overlay's own rows, in the order of the file."""
    paths = {
        (name, name_of(tables.BY_NAME[name], row)): f"{name}[{index}]"
        for name, added in rows.items()
        for index, row in added.items()
    }
    by_row: dict[str, list[str]] = {path: [] for path in paths.values()}
    for finding in check(facts):
        row_path = paths.get((finding.table, finding.row or ""))
        if row_path:
            by_row[row_path].append(
                f"{row_path}.{finding.field}: {finding.what}" if finding.field else f"{row_path}: {finding.what}"
            )
    return [fault for faults in by_row.values() for fault in faults]


class _Reader:
    """Converts the YAML tree into rows and collects its errors."""

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults

    def tables(self, tree: Any) -> dict[str, dict[int, Any]]:
        """Return rows by table and by their index in the file; invalid rows are left out."""
        if not isinstance(tree, dict):
            self._faults.append("the file must contain tables such as builds: and sources:")
            return {}
        if "schema" not in tree:
            # It is some other file, whose contents may be private, so nothing of it is quoted.
            self._faults.append("schema is missing; begin the file with 'schema: 1'")
            return {}
        if tree["schema"] != "1":
            self._faults.append(f"schema: {_shown(tree['schema'])} is not 1; begin the file with 'schema: 1'")
        self._unknown("", tree, ["schema", "facts_version", "sources", *tables.BY_NAME])
        by_table: dict[str, dict[int, Any]] = {}
        for name in tables.BY_NAME:
            if name in tree:
                by_table[name] = self._rows(name, tree[name])
        return by_table

    def sources(self, tree: Any) -> dict[str, Any]:
        """Return the overlay's own source rows."""
        sources = tree.get("sources", {}) if isinstance(tree, dict) and "schema" in tree else {}
        if not isinstance(sources, dict):
            self._faults.append("sources: is not a table of id: {kind: ..., what: ...}")
            return {}
        for name, row in sources.items():
            if not isinstance(row, dict) or not row or not all(isinstance(value, str) for value in row.values()):
                self._faults.append(
                    f"sources.{name:.{_SHOWN}}: must be a table of strings such as {{kind: ..., what: ...}}"
                )
        return sources

    def _rows(self, name: str, value: Any) -> dict[int, Any]:
        if not isinstance(value, list):
            self._faults.append(f"{name}: is not a list of rows")
            return {}
        table = tables.BY_NAME[name]
        rows: dict[int, Any] = {}
        seen: dict[tuple[Any, ...], int] = {}
        for index, entry in enumerate(value):
            row = self._row(table, f"{name}[{index}]", entry)
            if row is None:
                continue
            first = seen.setdefault(table.key_of(row), index)
            if first != index:
                self._faults.append(f"{name}[{index}]: has the same key as {name}[{first}]")
            rows[index] = row
        return rows

    def _row(self, table: Table, path: str, entry: Any) -> Any:
        if not isinstance(entry, dict):
            self._faults.append(f"{path}: is not a table of fields")
            return None
        faults = len(self._faults)
        self._unknown(f"{path}.", entry, list(table.columns))
        values: dict[str, Any] = {}
        for field in fields(table.row):
            # The model postpones the evaluation of annotations, so a type is text here: `tuple[str, ...] | None`.
            kind = str(field.type)
            if field.name in entry:
                values[field.name] = self._value(f"{path}.{field.name}", field.name, kind, entry[field.name])
            elif field.name in _ABSENT:
                values[field.name] = _ABSENT[field.name]
            elif kind.endswith("| None"):
                values[field.name] = None
            elif kind.startswith("tuple") and field.name != "refs":
                values[field.name] = ()
            else:
                self._faults.append(f"{path}.{field.name}: is missing")
        return table.row(**values) if len(self._faults) == faults else None

    def _value(self, path: str, name: str, kind: str, value: Any) -> Any:
        if (name == "cuda" and value == "cpu") or (value is None and kind.endswith("| None")):
            return None
        expected, fits, convert = _KINDS[kind.removesuffix(" | None")]
        if fits(value):
            return convert(value)
        self._faults.append(f"{path}: {_shown(value)} is not {expected}")
        return None

    def _unknown(self, prefix: str, entry: dict[str, Any], known: list[str]) -> None:
        for name in entry:
            if name not in known:
                close = similar(name, known)
                suggestion = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
                self._faults.append(f"{prefix}{name:.{_SHOWN}}: unknown{suggestion}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit()


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_text_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_bool_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, bool) for item in value.values())


# Type of a field in the model -> its name in messages, the test of the YAML value, the conversion.
_KINDS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "str": ("text", _is_text, str),
    "bool": ("true or false", _is_bool, bool),
    "int": ("a whole number", _is_number, int),
    "tuple[str, ...]": ("a list of strings", _is_list, tuple),
    "dict[str, str]": ("a table of strings", _is_text_table, dict),
    "dict[str, bool]": ("a table of booleans", _is_bool_table, dict),
}


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
