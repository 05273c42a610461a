"""`nvidia-smi --query-gpu=... --format=csv`, of one machine or of many, one row per GPU.

A column of host names may stand anywhere, and a runner of commands may put `host: ` before every line (pdsh, clush,
dsh). Without a head the cells are told apart by what they look like. Fields that say nothing of compatibility, such
as `memory.total [MiB]`, are passed over.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

from envkit.cover.hosts import Gpu, Host, Inventory
from envkit.cover.inventory.faults import Faults
from envkit.cover.inventory.plain import merged
from envkit.facts.model import Facts
from envkit.resolve.gpus import find

_BEFORE = re.compile(r"^([A-Za-z0-9][\w.-]{0,253}): +(?=\S)")
_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_NOISE = re.compile(
    r"\[?(?:not supported|n/a|unknown error)\]?|enabled|disabled|default|p[0-9]{1,2}|gpu-[0-9a-f-]+"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|[0-9.]+(?: ?(?:%|mib|gib|mb|gb|w|mhz|c|v))?",
    re.IGNORECASE,
)
_MAKER = re.compile(r"\b(?:nvidia|tesla|geforce|quadro)\b", re.IGNORECASE)
_HOST_FIELDS = ("host", "hostname", "node", "host_name")
_HINT = "nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv"


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    host: str | None
    cells: tuple[str, ...]


def is_answer(text: str, facts: Facts) -> bool:
    """Whether the text is what nvidia-smi prints: its own names of fields, or rows with a GPU and a driver."""
    rows = _rows(text)
    if not rows:
        return False
    if _is_head(rows[0].cells):
        return True
    cells = rows[0].cells
    return len(cells) > 1 and _gpu_at(cells, facts) is not None and _at(cells, _DRIVER) is not None


def parse(text: str, facts: Facts, where: str) -> Inventory:
    """One machine for each name, or for each head where no row is named.

    Raises:
        UsageError: with every fault of the rows.
    """
    faults = Faults(where)
    fields: tuple[str, ...] | None = None
    part = 0
    hosts: list[Host] = []
    drivers: dict[str, str] = {}
    for row in _rows(text):
        label = f"line {row.number}"
        if _is_head(row.cells):
            fields, part = tuple(_field(cell) for cell in row.cells), part + (row.host is None)
            continue
        parsed = _named(row.cells, fields) if fields else _told(row.cells, facts)
        if parsed is None:
            faults.add(label, f"no GPU found in {len(row.cells)} cells")
            continue
        name, gpu, driver = parsed
        host = row.host or name or f"host {max(part, 1)}"
        if driver and drivers.setdefault(host, driver) != driver:
            faults.add(label, f"driver {driver}, but earlier rows have {drivers[host]}: add a column with host names")
            continue
        hosts.append(Host(name=host, where=label, gpus=(gpu,) if gpu else (), driver=driver))
    faults.rise(_HINT)
    return Inventory(hosts=merged(hosts), form="nvidia-smi")


def _rows(text: str) -> list[_Row]:
    rows: list[_Row] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        before = _BEFORE.match(line)
        rest = line[before.end() :] if before else line
        cells = tuple(cell.strip() for cell in next(csv.reader([rest], skipinitialspace=True)))
        rows.append(_Row(number, before.group(1) if before else None, cells))
    return rows


def _field(cell: str) -> str:
    return re.sub(r"\s*\[.*\]$", "", cell).strip().lower()


def _is_head(cells: Sequence[str]) -> bool:
    fields = {_field(cell) for cell in cells}
    theirs = {"driver_version", "compute_cap", "gpu_name", "gpu_uuid", "pci.bus_id", "memory.total"}
    # Beside a column `gpu`, the column `name` is that of hosts.
    return bool(theirs & fields) and bool({"name", "gpu_name"} & fields) and not {"gpu", "gpus", "model"} & fields


def _named(cells: Sequence[str], fields: Sequence[str]) -> tuple[str | None, Gpu | None, str | None] | None:
    """Host, GPU and driver of a row whose fields are named."""
    if len(cells) != len(fields):
        return None
    row = dict(zip(fields, cells, strict=True))
    name = row.get("gpu_name") or row.get("name")
    capability = row.get("compute_cap", "")
    host = next((row[field] for field in _HOST_FIELDS if row.get(field)), None)
    driver = row.get("driver_version", "")
    gpu = Gpu(name=name, capability=capability if _CAPABILITY.fullmatch(capability) else None) if name else None
    return host, gpu, driver if _DRIVER.fullmatch(driver) else None


def _told(cells: Sequence[str], facts: Facts) -> tuple[str | None, Gpu | None, str | None] | None:
    """Host, GPU and driver of a row without names: by what each cell looks like."""
    gpu = _gpu_at(cells, facts)
    if gpu is None:
        return None
    driver, capability = _at(cells, _DRIVER), _at(cells, _CAPABILITY)
    left = [
        cell
        for column, cell in enumerate(cells)
        if column not in (gpu, driver, capability) and cell and not _NOISE.fullmatch(cell)
    ]
    said = cells[capability] if capability is not None else None
    return (
        left[0] if left else None,
        Gpu(name=cells[gpu], capability=said),
        cells[driver] if driver is not None else None,
    )


def _gpu_at(cells: Sequence[str], facts: Facts) -> int | None:
    """Where a GPU's name stands: one with its maker, else one that the facts know."""
    with_maker = (column for column, cell in enumerate(cells) if _MAKER.search(cell))
    known = (
        column
        for column, cell in enumerate(cells)
        if re.search("[A-Za-z]", cell) and find(cell, facts.gpus) is not None
    )
    return next(with_maker, next(known, None))


def _at(cells: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    return next((column for column, cell in enumerate(cells) if pattern.fullmatch(cell)), None)
