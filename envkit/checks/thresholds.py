"""The thresholds that judges use, each with its source.

Each check's rows are in its `check.yaml`; `thresholds.yaml` has the rows that belong to no single check.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from envkit.checks import catalog
from envkit.ground import records, strictyaml
from envkit.ground.canonical import digest_of
from envkit.ground.errors import Faults, IntegrityError, UsageError
from envkit.ground.records import Check, Doc, Location, Wording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
_MARGIN = frozenset({"reason", "healthy", "fault", "origin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Why one number of a row is what it is: the reason, what healthy machines reach, and what a planted fault gives.

    The number lies between ``healthy``, the worst value seen on each kind of machine, and ``value``, the mildest that
    the fault gave. Both are in the row's unit.
    """

    key: str  # the name of the number in the row's values
    reason: str
    healthy: Mapping[str, float]
    fault: str
    value: float
    origin: float = 0.0  # rooms are ratios of distances to it

    @property
    def is_floor(self) -> bool:
        """Whether healthy machines are above the number."""
        return self.value < min(self.healthy.values())

    def room(self, limit: float) -> tuple[float, float]:
        """Return by what factor ``limit`` is away from the worst healthy machine, and the fault from ``limit``.

        A factor is at most 1 if the limit does not lie between them, and infinite across the origin.
        """
        worst = min(self.healthy.values()) if self.is_floor else max(self.healthy.values())
        steps = [worst, limit, self.value] if not self.is_floor else [self.value, limit, worst]
        low, high = (_factor(low - self.origin, high - self.origin) for low, high in pairwise(steps))
        return (high, low) if self.is_floor else (low, high)


def _factor(low: float, high: float) -> float:
    if low <= 0 <= high:
        return math.inf if low < high else 1.0
    return high / low if low > 0 else low / high


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One row. ``values`` are numbers by name; versions, such as a driver's, stay text.

    ``reference`` was measured on a healthy machine, in ``unit``. ``judgement`` marks numbers that lack a reason, a
    healthy machine's value or a planted fault's; the others have them in ``margins``, by name. Margins explain the row
    and decide nothing, so records do not contain them.
    """

    name: str
    applies_to: Annotated[tuple[str, ...], _form(list, "lists no observation", _texts)]
    type: Annotated[str, Check(_no_type, {})]
    gates: Annotated[bool, _form(bool, "must be true or false")]
    unit: Annotated[str, _form(str, "missing or not text")]
    values: Annotated[Mapping[str, float | str], _form(dict, "lists no values", _numbers)]
    reference: Annotated[
        float | None, Check(_no_number, {}, lambda value: None if value is None else float(str(value)))
    ]
    source: Annotated[
        tuple[str, ...], _form(list, "missing; say where the numbers come from", _texts), Doc(after="applies_to")
    ]
    judgement: Annotated[bool, Check(lambda _: None, {}, lambda value: value is True)]
    margins: Annotated[Mapping[str, Margin], Check(lambda _: None, {})] = field(default_factory=dict, compare=False)

    def number(self, key: str) -> float:
        """Return the number called ``key``."""
        value = self.values[key]
        assert isinstance(value, float)
        return value

    def text(self, key: str) -> str | None:
        """Return the value called ``key`` as text, or None if the row has no such value."""
        value = self.values.get(key)
        return None if value is None else str(value)

    def record(self, **changed: Any) -> dict[str, Any]:
        """Return the row as a record keeps it to recompute the verdict, with the fields in ``changed`` replaced."""
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
        """Return the row ``name``. KeyError if there is none, because then a judge has a bug."""
        return self.rows[name]

    def link_limit(self, generation: int, width: int) -> float | None:
        """Return what a PCIe link carries in one direction in GB/s (1e9 bytes), or None for an unknown generation."""
        lane = self.lanes.get(generation)
        return None if lane is None or width < 1 else lane * width

    def fastest_link(self) -> float:
        """Return what the fastest known link carries with 16 lanes, in GB/s."""
        return max(self.lanes.values()) * 16

    def unmatched(self, observation_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the rows that match no observation although their check reported some: they can never apply.

        A check that was left out, skipped or broken reports only its bare ID or nothing, so its rows are not returned.
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
        rows = {name: _row_to_json(row) for name, row in sorted(self.rows.items())}
        lanes = {str(generation): rate for generation, rate in self.lanes.items()}
        # Tuples become lists, as in a record that is read back from its file.
        tree = json.loads(json.dumps({"schema": SCHEMA, "lanes": lanes, "rules": rows}))
        return {"sha256": digest_of(tree), **tree}


def _row_to_json(row: Threshold) -> dict[str, Any]:
    tree = asdict(row)
    del tree["margins"]
    return tree


# A context variable, so that threads that judge with other thresholds do not affect each other.
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
        UsageError: they are missing or incomplete.
        IntegrityError: they do not match their digest.
    """
    try:
        rows = {str(name): _recorded_row(str(name), row) for name, row in tree["rules"].items()}
        lanes = {int(generation): float(rate) for generation, rate in tree["lanes"].items()}
        digest, computed = tree["sha256"], digest_of({key: value for key, value in tree.items() if key != "sha256"})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the record's thresholds cannot be read: {error!r}") from error
    if digest != computed:
        raise IntegrityError(
            f"the record's thresholds were changed: their sha256 is {computed[:12]}, the record says {digest!s:.12}"
        )
    return Thresholds(rows=rows, lanes=lanes)


def _recorded_row(name: str, row: Mapping[str, Any]) -> Threshold:
    # Another program may have rewritten the record, with 3 instead of 3.0.
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
    """Return the shipped thresholds as one YAML file that users can edit and judge with."""
    tree = shipped_tree()
    lines = [f"schema: {SCHEMA}", "links:", *_flow(tree["links"], "  "), "rules:"]
    for name, row in tree["rules"].items():
        lines += [f"  {name}:", *_flow(row, "    ")]
    return "\n".join(lines) + "\n"


def _flow(tree: Mapping[str, Any], indent: str) -> list[str]:
    # JSON is also YAML, so each value fits on the line of its key.
    return [f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in tree.items()]


def parse(text: str, name: str) -> Thresholds:
    """Return the thresholds of a YAML text that errors call ``name``.

    Raises:
        UsageError: not strict YAML, another schema, or invalid rows: an unknown key or type, no source, no values.
    """
    return _table(strictyaml.read(text, name), name)


def _table(tree: Any, name: str) -> Thresholds:
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise UsageError(f"{name}: schema is not {SCHEMA}")
    faults = Faults()
    at = Location(name, faults, Wording(suggestions=0, key=str))
    links, rules = tree.get("links"), tree.get("rules")
    if not isinstance(links, dict) or not isinstance(rules, dict) or not rules:
        raise UsageError(f"{name}: links and rules must be mappings")
    lanes = _lanes(links.get("generations"), at)
    rows = {key: row for key, value in rules.items() if (row := _row(key, value, at)) is not None}
    faults.refuse(most=sys.maxsize)
    return Thresholds(rows=rows, lanes=lanes)


def _lanes(table: Any, at: Location) -> dict[int, float]:
    lanes: dict[int, float] = {}
    for generation, row in (table if isinstance(table, dict) else {}).items():
        try:
            lanes[int(generation)] = float(row["gt_per_s"]) * float(row["payload"]) / 8  # bits per byte
        except (KeyError, TypeError, ValueError):
            at.add(f"links.generations.{generation}", "needs the numbers gt_per_s and payload")
    if not lanes:
        at.add("links.generations", "lists no generation")
    return lanes


def _row(name: str, tree: Any, at: Location) -> Threshold | None:
    where = f"rules.{name}"
    if not isinstance(tree, dict):
        at.add(where, "not a mapping")
        return None
    before = len(at.faults)
    # A key that is not there is as null; unknown ones are reported in a fixed order.
    row = {**dict.fromkeys(records.fields(Threshold)), **dict(sorted(tree.items()))}
    found = records.values(row, Threshold, at.under(f"{at.path}: {where}"))
    found["margins"] = _margins(f"{where}.margins", tree.get("margins"), tree.get("values"), at)
    return Threshold(name=name, **found) if len(at.faults) == before else None


def _form(kind: type, why: str, convert: Callable[[Any], Any] | None = None) -> Check:
    """Return the form of a value of a type; a list or a mapping has something in it."""
    return Check(lambda value: None if isinstance(value, kind) and (value or kind in (bool, str)) else why, {}, convert)


def _texts(value: list[Any]) -> tuple[str, ...]:
    return tuple(map(str, value))


def _numbers(value: dict[Any, Any]) -> dict[str, float | str]:
    return {str(key): _value(item) for key, item in value.items()}


def _no_type(value: Any) -> str | None:
    return None if value in TYPES else f"{value!r} is not one of {', '.join(TYPES)}"


def _no_number(value: Any) -> str | None:
    return None if value is None or isinstance(_value(value), float) else f"{value!r:.80} is not a number"


def _margins(where: str, tree: Any, values: Any, at: Location) -> dict[str, Margin]:
    """Return the margins of a row by the names of its numbers."""
    margins: dict[str, Margin] = {}
    if tree is None:
        return margins
    if not isinstance(tree, dict):
        at.add(f"{where}", "not a mapping")
        return margins
    for key, one in tree.items():
        place = f"{where}.{key}"
        if not isinstance(values, dict) or not isinstance(_value(values.get(key)), float):
            at.add(place, "the row has no number of this name")
        elif not isinstance(one, dict) or set(one) - {"origin"} != _MARGIN - {"origin"}:
            at.add(place, "needs reason, healthy and fault, and may have origin")
        elif (margin := _margin(str(key), one)) is None:
            at.add(place, "healthy needs numbers by machine, and fault needs what and value")
        else:
            margins[str(key)] = margin
    return margins


def _margin(key: str, tree: Mapping[str, Any]) -> Margin | None:
    try:
        healthy = {str(name): float(str(value)) for name, value in tree["healthy"].items()}
        if not healthy:
            return None
        return Margin(
            key=key,
            reason=str(tree["reason"]),
            healthy=healthy,
            fault=str(tree["fault"]["what"]),
            value=float(str(tree["fault"]["value"])),
            origin=float(str(tree.get("origin", 0.0))),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _value(value: Any) -> float | str:
    """Return the value as a number if it is one; a version with two dots stays text."""
    try:
        return float(str(value))
    except ValueError:
        return str(value)


if __name__ == "__main__":
    sys.stdout.write(shipped_text())
