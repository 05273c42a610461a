"""Expand a matrix into cells: a plan per combination, equal plans merged, and a reason for each impossible one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envkit.fleet.matrix import Matrix, Row, Value, rows_of
from envkit.fleet.model import Cell, Impossible
from envkit.fleet.names import cell_name, marked
from envkit.ground.errors import ConflictError, UsageError
from envkit.pipeline.resolving import Asked, Note, adding, allowing
from envkit.plan.definition import overlaid
from envkit.plan.planner import Given
from envkit.resolve.request import FIELDS

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.plan.definition import Definition

BASE = "base"
_IMAGE, _AUTO = "image", "auto"
Load = Callable[[str], "Definition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """The cells of a matrix, in the order of the file."""

    cells: tuple[Cell, ...]
    impossible: tuple[Impossible, ...]


def expand(
    matrix: Matrix,
    given: Given,
    facts: Facts,
    load: Load,
    *,
    base: str = _AUTO,
    allow_source: Sequence[str] = (),
    note: Note = lambda _: None,
) -> Expanded:
    """Return the cells of a matrix. Pure, if `load` is: equal matrices, requests and facts give equal cells.

    Args:
        matrix: the combinations.
        given: request flags; they apply to every cell.
        facts: the compatibility data.
        load: loads an image definition by name or path; called once for each.
        base: the value of `--base`, for cells without their own (see `base_of`).
        allow_source: entries that every cell has besides those of its definition.
        note: receives the remarks on cells.

    Raises:
        UsageError: a flag is also an axis, two images have the same name, or a definition or a value is invalid; the
            errors of all cells are listed.
    """
    _refuse_typed_axes(matrix, {**given, BASE: None if base == _AUTO else base})
    rows = rows_of(matrix)
    definitions = {name: load(name) for name in dict.fromkeys(str(dict(row)[_IMAGE]) for row in rows)}
    _refuse_equal_names(definitions, matrix.where)
    cells: dict[tuple[object, ...], Cell] = {}
    impossible: list[Impossible] = []
    faults: list[str] = []
    for name, axes, row in _named(rows, definitions):
        image = str(dict(row)[_IMAGE])
        try:
            fields, add = adding({**given, **_request(row)})
            changed = _changes(row, f"{matrix.where}: {name}", allow_source, add)
            asked = Asked(
                definition=image,
                fields=fields,
                facts=facts,
                note=note,
                changed=changed,
                _loaded={None: changed(definitions[image])},
            )
            plan = asked.plan()
        # An impossible combination is a result; an unknown value is a mistake in the file.
        except ConflictError as error:
            reason = ": ".join([error.message, *error.details[:1]])
            impossible.append(Impossible(name=name, axes=axes, reason=reason, hint=error.hint))
            continue
        except UsageError as error:
            faults += [f"{name}: {line}" for line in (error.message, *error.details)]
            continue
        # The base is chosen at build time and is not in the plan's digest, so it has to be in the key.
        # Requests with one plan are one image, unless packages decide what each becomes.
        request = asked.request() if asked.undecided(plan) else None
        key = (plan.digest, dict(row).get(BASE), request)
        first = cells.get(key)
        own = Cell(name=name, axes=axes, plan=plan, asked=asked)
        cells[key] = replace(first, also=(*first.also, name)) if first else own
    if faults:
        unique = list(dict.fromkeys(faults))
        raise UsageError(
            f"{matrix.where}: {unique[0]}",
            details=tuple(unique[1:]),
            hint="`envkit help fleet` lists every key and its meaning",
        )
    return Expanded(cells=tuple(cells.values()), impossible=tuple(impossible))


def base_of(cell: Cell, typed: str) -> str:
    """Return the cell's own base image, else the typed one."""
    return dict(cell.axes).get(BASE, typed)


def _named(
    rows: Sequence[Row], definitions: Mapping[str, Definition]
) -> list[tuple[str, tuple[tuple[str, str], ...], Row]]:
    """Return each distinct row with its name and its fields as text; equal names of different rows are marked."""
    named_rows = []
    for row in dict.fromkeys(rows):
        axes = tuple((key, _text(value)) for key, value in row if key != _IMAGE and value is not None)
        named_rows.append((definitions[str(dict(row)[_IMAGE])].name, axes, row))
    names = [cell_name(name, axes) for name, axes, _ in named_rows]
    ambiguous = {name for name, count in Counter(names).items() if count > 1}
    return [
        (marked(name, definition, axes) if name in ambiguous else name, axes, row)
        for name, (definition, axes, row) in zip(names, named_rows, strict=True)
    ]


def _text(value: Value) -> str:
    return "_".join(value) if isinstance(value, tuple) else "true" if value is True else str(value)


def _changes(
    row: Row, where: str, allow_source: Sequence[str], add: Callable[[Definition], Definition]
) -> Callable[[Definition], Definition]:
    """Return what a row and flags change in the definition of its image; it raises UsageError if a value is invalid."""
    allowed = allowing(allow_source)
    own = {key: value for key, value in row if key not in (*FIELDS, BASE, _IMAGE) and value is not None}
    tree = {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}
    return lambda definition: add(allowed(overlaid(definition, tree, where)))


def _request(row: Row) -> dict[str, Value]:
    return {key: value for key, value in row if key in FIELDS and value is not None}


def _refuse_typed_axes(matrix: Matrix, given: Given) -> None:
    # The values of flags that were not given.
    typed = {key for key, value in given.items() if value not in (None, (), [], False)}
    uses = [(name, f"the axis {name}", "the axis") for name, _ in matrix.axes]
    uses += [(name, f"{name} in include", name) for row in matrix.include for name, _ in row]
    both = [use for use in uses if use[0] in typed]
    if both:
        name, use, what = both[0]
        raise UsageError(
            f"--{name} and {use} of {matrix.where} contradict each other", hint=f"remove --{name} or {what}"
        )


def _refuse_equal_names(definitions: Mapping[str, Definition], where: str) -> None:
    by_name: dict[str, str] = {}
    for definition in definitions.values():
        other = by_name.setdefault(definition.name, definition.where)
        if other != definition.where:
            raise UsageError(
                f"{where}: {other} and {definition.where} both have the name {definition.name}, which becomes the tag",
                hint="rename one of the files",
            )
