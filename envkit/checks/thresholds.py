"""The thresholds that judges use, each with its source.

The rows of a check stand in its `check.yaml`; `thresholds.yaml` has what belongs to no single check.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from envkit.checks import catalog
from envkit.ground import strictyaml
from envkit.ground.canonical import digest_of
from envkit.ground.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SCHEMA = "envkit.thresholds/1"
TYPES = (
    "equals",
    "band",
    "max_rel_err",
    "min_ratio",
    "max_ratio",
    "minimum",
    "min_frac_of_limit",
    "not_worse_than_baseline",
)
_KEYS = frozenset({"applies_to", "type", "gates", "unit", "values", "reference", "source", "judgement"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One row. ``values`` are numbers by name; versions, like a driver's, stay text.

    ``reference`` is what a healthy machine was measured at, in ``unit``; ``judgement`` marks a number that no
    measurement on a GPU has confirmed.
    """

    name: str
    applies_to: tuple[str, ...]
    type: str
    gates: bool
    unit: str
    values: Mapping[str, float | str]
    reference: float | None
    source: tuple[str, ...]
    judgement: bool

    def number(self, key: str) -> float:
        """Return the number called ``key``."""
        value = self.values[key]
        assert isinstance(value, float)
        return value

    def text(self, key: str) -> str | None:
        """Return the value called ``key`` as text, None where the row has none."""
        value = self.values.get(key)
        return None if value is None else str(value)

    def record(self, **changed: Any) -> dict[str, Any]:
        """Return the row as the record keeps it, so that the verdict can be recomputed, with fields ``changed``."""
        return {
            "type": self.type,
            **self.values,
            "unit": self.unit,
            "gates": self.gates,
            "source": f"thresholds: {self.name}",
            "judgement": self.judgement,
            **changed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """All rows by name, and the payload of one PCIe lane in GB/s by generation."""

    rows: Mapping[str, Threshold]
    lanes: Mapping[int, float]

    def row(self, name: str) -> Threshold:
        """Return the row ``name``; a judge that asks for one that does not exist is a bug, so KeyError."""
        return self.rows[name]

    def link_limit(self, generation: int, width: int) -> float | None:
        """Return what a PCIe link carries in one direction in GB/s (1e9 bytes), None for an unknown generation."""
        lane = self.lanes.get(generation)
        return None if lane is None or width < 1 else lane * width

    def fastest_link(self) -> float:
        """Return what the fastest known link carries in GB/s, with 16 lanes."""
        return max(self.lanes.values()) * 16

    def unmatched(self, observation_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the rows that apply to no observation though their check reported some: a rule that can never fire.

        A check that was left out, skipped or broken reports its bare id or nothing, and says nothing of its rows.
        """
        ids = [observation_id for observation_id in observation_ids if "." in observation_id]
        reported = {observation_id.partition(".")[0] for observation_id in ids}
        return tuple(
            name
            for name, row in self.rows.items()
            if {wanted.partition(".")[0] for wanted in row.applies_to} <= reported
            and not any(wanted in ids or wanted in reported for wanted in row.applies_to)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the whole table as plain JSON, with its digest, as a record keeps it."""
        rows = {name: {**asdict(row), "values": dict(row.values)} for name, row in sorted(self.rows.items())}
        lanes = {str(generation): rate for generation, rate in self.lanes.items()}
        tree = json.loads(json.dumps({"schema": SCHEMA, "lanes": lanes, "rules": rows}))
        return {"sha256": digest_of(tree), **tree}


_used: ContextVar[Thresholds | None] = ContextVar("thresholds", default=None)


def load() -> Thresholds:
    """Return the thresholds in force: the shipped ones, or those of the surrounding `using`.

    Raises:
        UsageError: the shipped file is invalid; all errors come at once.
    """
    return _used.get() or shipped()


@contextmanager
def using(table: Thresholds) -> Iterator[None]:
    """Judge with `table` inside the block."""
    token = _used.set(table)
    try:
        yield
    finally:
        _used.reset(token)


def of_record(tree: Any) -> Thresholds:
    """Return the thresholds that a record carries.

    Raises:
        UsageError: there are none, or they are not whole.
        IntegrityError: their digest is not theirs.
    """
    try:
        rows = {str(name): _kept_row(str(name), row) for name, row in tree["rules"].items()}
        lanes = {int(generation): float(rate) for generation, rate in tree["lanes"].items()}
        digest, computed = tree["sha256"], digest_of({key: value for key, value in tree.items() if key != "sha256"})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the record's thresholds cannot be read: {error!r}") from error
    if digest != computed:
        raise IntegrityError(
            f"the record's thresholds were changed: they are {computed[:12]}, and it says {digest!s:.12}"
        )
    return Thresholds(rows=rows, lanes=lanes)


def _kept_row(name: str, row: Mapping[str, Any]) -> Threshold:
    values = {key: value if isinstance(value, str) else float(value) for key, value in row["values"].items()}
    lists = {key: tuple(row[key]) for key in ("applies_to", "source")}
    return Threshold(**{**row, **lists, "name": name, "values": values})


@cache
def shipped() -> Thresholds:
    """Return the shipped thresholds.

    Raises:
        UsageError: the file is invalid; all errors come at once.
    """
    return _table(shipped_tree(), "checks")


@cache
def shipped_tree() -> dict[str, Any]:
    """Return the shipped thresholds as the tree of one file: thresholds.yaml, and the rows of every check.yaml.

    Raises:
        UsageError: a file is not strict YAML, or two have the same row.
    """
    text = (resources.files(__package__) / "thresholds.yaml").read_text(encoding="utf-8")
    tree = strictyaml.read(text, "checks/thresholds.yaml")
    assert isinstance(tree, dict)
    rules: dict[str, Any] = {}
    for folder, card in catalog.cards().items():
        for name, row in (card.get("thresholds") or {}).items():
            if name in rules or not name.startswith(f"{card['id']}."):
                raise UsageError(f"checks/{folder}/check.yaml: thresholds.{name} does not begin with {card['id']}.")
            rules[name] = row
    return {**tree, "rules": {**rules, **tree["rules"]}}


def shipped_text() -> str:
    """Return the shipped thresholds as one YAML file, to be edited and judged with."""
    tree = shipped_tree()
    lines = [f"schema: {SCHEMA}", "links:", *_flow(tree["links"], "  "), "rules:"]
    for name, row in tree["rules"].items():
        lines += [f"  {name}:", *_flow(row, "    ")]
    return "\n".join(lines) + "\n"


def _flow(tree: Mapping[str, Any], indent: str) -> list[str]:
    # JSON is YAML in one line, so every value stands on the line of its key.
    return [f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in tree.items()]


def parse(text: str, name: str) -> Thresholds:
    """Return the thresholds of a YAML text that errors call ``name``.

    Raises:
        UsageError: not strict YAML, another schema, or invalid rows: an unknown key or type, no source, no number.
    """
    return _table(strictyaml.read(text, name), name)


def _table(tree: Any, name: str) -> Thresholds:
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise UsageError(f"{name}: schema is not {SCHEMA}")
    faults: list[str] = []
    links, rules = tree.get("links"), tree.get("rules")
    if not isinstance(links, dict) or not isinstance(rules, dict) or not rules:
        raise UsageError(f"{name}: links and rules have to be mappings")
    lanes = _lanes(links.get("generations"), faults)
    rows = {key: row for key, value in rules.items() if (row := _row(key, value, faults)) is not None}
    if faults:
        raise UsageError(f"{name}: {faults[0]}", details=tuple(f"{name}: {fault}" for fault in faults[1:]))
    return Thresholds(rows=rows, lanes=lanes)


def _lanes(table: Any, faults: list[str]) -> dict[int, float]:
    lanes: dict[int, float] = {}
    for generation, row in (table if isinstance(table, dict) else {}).items():
        try:
            # Eight bits to a byte.
            lanes[int(generation)] = float(row["gt_per_s"]) * float(row["payload"]) / 8
        except (KeyError, TypeError, ValueError):
            faults.append(f"links.generations.{generation}: needs the numbers gt_per_s and payload")
    if not lanes:
        faults.append("links.generations: no link")
    return lanes


def _row(name: str, tree: Any, faults: list[str]) -> Threshold | None:
    where = f"rules.{name}"
    if not isinstance(tree, dict):
        faults.append(f"{where}: not a mapping")
        return None
    before = len(faults)
    faults.extend(f"{where}.{key}: unknown key" for key in sorted(set(tree) - _KEYS))
    applies, source, values = tree.get("applies_to"), tree.get("source"), tree.get("values")
    if not isinstance(applies, list) or not applies:
        faults.append(f"{where}.applies_to: names no observation")
    if not isinstance(source, list) or not source:
        faults.append(f"{where}.source: a number without a source")
    if tree.get("type") not in TYPES:
        faults.append(f"{where}.type: {tree.get('type')!r} is not one of {', '.join(TYPES)}")
    if not isinstance(tree.get("gates"), bool):
        faults.append(f"{where}.gates: has to be true or false")
    if not isinstance(tree.get("unit"), str):
        faults.append(f"{where}.unit: a number without a unit")
    if not isinstance(values, dict) or not values:
        faults.append(f"{where}.values: holds no number")
    if len(faults) > before:
        return None
    reference = tree.get("reference")
    return Threshold(
        name=name,
        applies_to=tuple(str(item) for item in applies or ()),
        type=str(tree["type"]),
        gates=tree["gates"] is True,
        unit=str(tree["unit"]),
        values={str(key): _value(value) for key, value in (values if isinstance(values, dict) else {}).items()},
        reference=None if reference is None else float(str(reference)),
        source=tuple(str(item) for item in source or ()),
        judgement=tree.get("judgement") is True,
    )


def _value(value: Any) -> float | str:
    """Return a number where the text is one; a version with two dots is none."""
    try:
        return float(str(value))
    except ValueError:
        return str(value)


if __name__ == "__main__":
    sys.stdout.write(shipped_text())
