"""envkit's own two formats: a CSV file with a header, and a JSON list of objects.

Of the columns `name,gpu,driver,arch,os,count,capability` only `name` is required. Several GPUs in one machine are
separated by `;`, or have a row each with the same name. In JSON:
`[{"name": "gpu01", "gpu": ["A100"], "driver": "535.104.05"}]`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envkit.cover.hosts import Gpu, Host, Inventory
from envkit.ground.errors import Faults, UsageError
from envkit.ground.records import Location
from envkit.ground.text import similar

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "host", "hosts", "hostname", "node"),
    "gpu": ("gpu", "gpus", "gpu_name", "gpu name", "model", "product"),
    "driver": ("driver", "driver_version", "driver version", "nvidia_driver"),
    "arch": ("arch", "architecture", "machine", "platform"),
    "os": ("os", "os_image", "distribution"),
    "count": ("count", "number", "machines", "nodes"),
    "capability": ("capability", "compute_cap", "sm"),
}
_FIELDS = {alias: name for name, aliases in COLUMNS.items() for alias in aliases}
_SEPARATORS = ";+|"
_TIMES = re.compile(r"^[0-9]{1,3} ?[x*] ?(?=\S)|(?<=\S) [x*] ?[0-9]{1,3}$")  # `4x A100`, `A100 x4`
_MOST_DIGITS = 7  # of a number of machines; more are a typing error


def is_table(text: str) -> bool:
    """Return whether the first line is a header with a column of host names."""
    head = next(csv.reader(io.StringIO(_first(text))), [])
    return any(_FIELDS.get(_plain(cell)) == "name" for cell in head)


def parse_csv(text: str, where: str) -> Inventory:
    """Return the machines of a CSV; empty lines and lines that begin with `#` are ignored.

    Raises:
        UsageError: rows are invalid; all errors are listed.
    """
    faults = Faults()
    at = Location(where, faults, joint=", ")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    head = [_plain(cell) for cell in next(csv.reader([lines[0][1]]))]
    names = [_FIELDS.get(cell) for cell in head]
    for cell, name in zip(head, names, strict=True):
        if name is None:
            at.add(f"line {lines[0][0]}", f"unknown column {cell!r:.60}{_near(cell)}")
    if "name" not in names:
        at.add(f"line {lines[0][0]}", "no column with host names")
    faults.refuse(f"columns: {', '.join(COLUMNS)}")
    hosts: list[Host] = []
    for number, line in lines[1:]:
        label = f"line {number}"
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if len(cells) > len(names):
            at.add(label, f"{len(cells)} cells for {len(names)} columns (separate several GPUs with ';')")
            continue
        row = {name: cell for name, cell in zip(names, cells, strict=False) if name and cell}
        hosts += _host(row, label, at)
    _same_counts(hosts, at)
    faults.refuse("fix the lines, or remove them")
    return Inventory(hosts=merged(hosts), form="csv")


def parse_json(tree: Any, where: str) -> Inventory:
    """Return the machines of a list of objects, or of the list under the key `hosts`.

    Raises:
        UsageError: rows are invalid; all errors are listed.
    """
    rows = tree.get("hosts") if isinstance(tree, dict) else tree
    if not isinstance(rows, list):
        raise UsageError(
            f"{where} is not a list of hosts or output of kubectl, Slurm or envkit doctor",
            hint='[{"name": "gpu01", "gpu": "A100", "driver": "550.54.15"}]',
        )
    faults = Faults()
    at = Location(where, faults, joint=", ")
    hosts: list[Host] = []
    for number, row in enumerate(rows, 1):
        label = f"host {number}"
        if not isinstance(row, dict):
            at.add(label, "is not an object")
            continue
        named: dict[str, Any] = {}
        for key, value in row.items():
            name = _FIELDS.get(_plain(str(key)))
            if name is None:
                at.add(label, f"unknown field {key!r:.60}{_near(str(key))}")
            elif value is not None:
                named[name] = value
        hosts += _host(named, label, at)
    _same_counts(hosts, at)
    faults.refuse(f"fields: {', '.join(COLUMNS)}")
    return Inventory(hosts=merged(hosts), form="json")


def merged(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Merge rows with the same name and driver into one machine with all their GPUs: tools print a row per GPU."""
    machines: dict[tuple[str, str | None], Host] = {}
    for host in hosts:
        identity = (host.name, host.driver)
        before = machines.get(identity)
        machines[identity] = (
            host if before is None else replace(before, gpus=tuple(dict.fromkeys(before.gpus + host.gpus)))
        )
    return tuple(machines.values())


def _same_counts(hosts: Sequence[Host], at: Location) -> None:
    """Check that rows with the same name, which are one machine, have the same count."""
    counts: dict[tuple[str, str | None], int] = {}
    for host in hosts:
        before = counts.setdefault((host.name, host.driver), host.count)
        if host.count != before:
            at.add(host.where, f"{host.name!r:.60} has count {host.count}, but earlier rows have {before}")


def _host(row: Mapping[str, Any], label: str, at: Location) -> list[Host]:
    name = row.get("name")
    if not isinstance(name, str) or not name.strip():
        at.add(label, "has no host name")
        return []
    count = _count(row.get("count", 1))
    if count is None:
        at.add(label, f"{row['count']!r:.40} is not a number of machines")
        return []
    capability = str(row["capability"]).removeprefix("sm_") if row.get("capability") else None
    if capability and "." not in capability:
        # `86`, from `sm_86`
        capability = f"{capability[:-1]}.{capability[-1]}"
    names = _gpus(row.get("gpu"))
    return [
        Host(
            name=name.strip(),
            where=label,
            # With several GPUs, it is unknown which of them has this capability.
            gpus=tuple(Gpu(name=gpu_name, capability=capability if len(names) == 1 else None) for gpu_name in names),
            driver=_text(row, "driver"),
            machine=_text(row, "arch"),
            os=_text(row, "os"),
            count=count,
        )
    ]


def _count(value: object) -> int | None:
    """Return a number of machines; None if it is not one."""
    text = str(value).strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0
    return int(text) if is_number else None


def _gpus(value: Any) -> list[str]:
    """Return GPU names from a list or from text with separators; `4x A100` and `A100 x4` are A100."""
    text = "\n".join(map(str, value)) if isinstance(value, list) else str(value or "")
    for separator in _SEPARATORS:
        text = text.replace(separator, "\n")
    return [name for line in text.splitlines() if (name := _TIMES.sub("", line.strip()))]


def _text(row: Mapping[str, Any], field: str) -> str | None:
    value = row.get(field)
    return str(value).strip() or None if value is not None else None


def _first(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip() and line[0] != "#"), "")


def _plain(cell: str) -> str:
    return cell.strip().strip('"').lower()


def _near(text: str) -> str:
    close = similar(text, _FIELDS)
    return f"; did you mean {close[0]}?" if close else ""
