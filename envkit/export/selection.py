"""How a CI job selects its image: by definition, or by the plan of a matrix cell.

Plans are written beside the exported file, so that the job builds exactly what was exported, even with the facts of a
later envkit. They are indented JSON, one value per line, so that changes are easy to review.
"""

from __future__ import annotations

import json

from envkit.export.model import Order
from envkit.fleet.expand import base_of
from envkit.fleet.model import Cell


def plans(order: Order, folder: str) -> dict[str, str]:
    """Return the plan of each cell of a matrix by its path; nothing if definitions are named."""
    if order.matrix is None:
        return {}
    return {f"{folder}/{cell.name}.json": _text(cell) for cell in order.cells}


def fields(order: Order, cell: Cell) -> dict[str, str]:
    """Return the fields of a cell's job besides the name: the definition, or the base if the matrix sets one."""
    if order.matrix is None:
        return {"definition": order.definitions[cell.name]}
    return {"base": base_of(cell, "auto")} if _based(order) else {}


def words(order: Order, folder: str) -> str:
    """Return the arguments of `envkit build` in a shell whose variables are CELL and the `fields` in upper case."""
    if order.matrix is None:
        return '"$DEFINITION"'
    return f'--plan "{folder}/$CELL.json"' + (' --base "$BASE"' if _based(order) else "")


def _based(order: Order) -> bool:
    return any(base_of(cell, "") for cell in order.cells)


def _text(cell: Cell) -> str:
    return json.dumps(cell.plan.to_json(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
