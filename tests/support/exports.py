"""Make orders for the exporters, and read the exported files."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from envkit.export.kinds import kind, options
from envkit.export.model import Order, checked
from envkit.fleet.expand import expand
from envkit.fleet.matrix import parse
from envkit.fleet.model import Cell
from envkit.fleet.names import cell_name
from envkit.ground.requirement import parse as parse_requirement
from envkit.plan.definition import load
from tests.support.plans import facts, shipped_plan

PIN = f"envkit-gpu==1.2.3 --hash=sha256:{'1' * 64}"
REGISTRY = "registry.example.com/team/train"
MATRIX = """\
schema: envkit.matrix/1
image: cpu
axes:
  python: ["3.11", "3.12"]
  torch: ["2.6", "2.7"]
include:
  - image: cu126
    python: "3.11"
"""


@cache
def cell(name: str = "cpu") -> Cell:
    """Return the cell of a shipped image."""
    plan = shipped_plan(name)
    return Cell(name=cell_name(plan.name, ()), axes=(), plan=plan)


def order(kind_name: str, images: Sequence[str] = ("cpu", "cu126"), *, given: Any = None, **fields: Any) -> Order:
    """Return an order of shipped images, checked like the command line's."""
    cells = tuple(cell(name) for name in images)
    known: dict[str, Any] = {
        "cells": cells,
        "definitions": {cell.name: name for cell, name in zip(cells, images, strict=True)},
        "registry": REGISTRY,
        "version": "1.2.3",
        "requirement": parse_requirement(PIN),
        "command": f"envkit export {kind_name}",
        "options": options(kind_name, given or {}),
    }
    return checked(Order(**known | fields))


def matrix_order(kind_name: str, **fields: Any) -> Order:
    """Return an order of MATRIX."""
    return order(kind_name, (), cells=_cells(), definitions={}, matrix="images/matrix.yaml", **fields)


@cache
def _cells() -> tuple[Cell, ...]:
    return expand(parse(MATRIX, where="images/matrix.yaml"), {}, facts(), load).cells


def exported(kind_name: str, images: Sequence[str] = ("cpu", "cu126"), **fields: Any) -> Mapping[str, str]:
    """Return the files of an order of shipped images."""
    return kind(kind_name).exporter()(order(kind_name, images, **fields))


def main_file(files: Mapping[str, str]) -> str:
    """Return the text of the first file."""
    return next(iter(files.values()))


def read_yaml(text: str) -> Any:
    """Parse YAML like CI systems, for which `on` is a string."""
    tree = yaml.safe_load(text)
    return {("on" if key is True else key): value for key, value in tree.items()}


def read_jsonc(text: str) -> Any:
    """Parse JSON in which whole lines may be comments."""
    return json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))
