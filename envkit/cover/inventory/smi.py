"""The output of `nvidia-smi --query-gpu=... --format=csv` on one or more machines, one row per GPU.

Any column may have the host names, or each line may have a prefix `host: `, as pdsh, clush and dsh write it. Without a
header, the cells are recognized by their contents. Fields that do not matter for compatibility, such as
`memory.total [MiB]`, are ignored.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

from envkit.cover.hosts import Gpu, Host, Inventory
from envkit.cover.inventory.plain import merged
from envkit.facts.model import Facts
from envkit.ground.errors import Faults
from envkit.ground.records import Location
from envkit.resolve.gpus import find

# `gpu01: NVIDIA A100-SXM4-80GB, 550.54.15, 8.0`
_BEFORE = re.compile(r"^([A-Za-z0-9][\w.-]{0,253}): +(?=\S)")
_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
# Cells that are no host name: `[N/A]`, `Enabled`, `P0`, `GPU-<UUID>`, `00000000:3B:00.0`, `81920 MiB`, `31 %`.
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
    """Return whether the text is output of nvidia-smi: it has its field names, or rows with a GPU and a driver."""
    rows = _rows(text)
    if not rows:
        return False
    if _is_head(rows[0].cells):
        return True
    cells = rows[0].cells
    return len(cells) > 1 and _gpu_at(cells, facts) is not None and _at(cells, _DRIVER) is not None


def parse(text: str, facts: Facts, where: str) -> Inventory:
    """Return one machine per host name, or per header if the rows have no host names.

    Raises:
        UsageError: rows are invalid; all errors are listed.
    """
    faults = Faults()
    at = Location(where, faults, joint=", ")
    fields: tuple[str, ...] | None = None
    part = 0
    hosts: list[Host] = []
    drivers: dict[str, str] = {}
    for row in _rows(text):
        label = f"line {row.number}"
        if _is_head(row.cells):
            # Without host names, each header begins the output of another machine.
            fields, part = tuple(_field(cell) for cell in row.cells), part + (row.host is None)
            continue
        parsed = _by_fields(row.cells, fields) if fields else _by_contents(row.cells, facts)
        if parsed is None:
            at.add(label, f"no GPU found in {len(row.cells)} cells")
            continue
        name, gpu, driver = parsed
        host = row.host or name or f"host {max(part, 1)}"
        if driver and drivers.setdefault(host, driver) != driver:
            at.add(label, f"driver {driver}, but earlier rows have {drivers[host]}: add a column with host names")
            continue
        hosts.append(Host(name=host, where=label, gpus=(gpu,) if gpu else (), driver=driver))
    faults.refuse(_HINT)
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
    own = {"driver_version", "compute_cap", "gpu_name", "gpu_uuid", "pci.bus_id", "memory.total"}
    # With a column `gpu` it is a CSV inventory, whose column `name` has the hosts.
    return bool(own & fields) and bool({"name", "gpu_name"} & fields) and not {"gpu", "gpus", "model"} & fields


def _by_fields(cells: Sequence[str], fields: Sequence[str]) -> tuple[str | None, Gpu | None, str | None] | None:
    """Return host, GPU and driver of a row below a header; None if the number of cells is wrong."""
    if len(cells) != len(fields):
        return None
    row = dict(zip(fields, cells, strict=True))
    name = row.get("gpu_name") or row.get("name")
    capability = row.get("compute_cap", "")
    host = next((row[field] for field in _HOST_FIELDS if row.get(field)), None)
    driver = row.get("driver_version", "")
    gpu = Gpu(name=name, capability=capability if _CAPABILITY.fullmatch(capability) else None) if name else None
    return host, gpu, driver if _DRIVER.fullmatch(driver) else None


def _by_contents(cells: Sequence[str], facts: Facts) -> tuple[str | None, Gpu | None, str | None] | None:
    """Return host, GPU and driver of a row without a header, recognized by their contents; None without a GPU."""
    gpu = _gpu_at(cells, facts)
    if gpu is None:
        return None
    driver, capability = _at(cells, _DRIVER), _at(cells, _CAPABILITY)
    others = [
        cell
        for column, cell in enumerate(cells)
        if column not in (gpu, driver, capability) and cell and not _NOISE.fullmatch(cell)
    ]
    return (
        others[0] if others else None,
        Gpu(name=cells[gpu], capability=cells[capability] if capability is not None else None),
        cells[driver] if driver is not None else None,
    )


def _gpu_at(cells: Sequence[str], facts: Facts) -> int | None:
    """Return the column of a GPU's name: one with a brand name, else one that the facts have."""
    with_maker = (column for column, cell in enumerate(cells) if _MAKER.search(cell))
    known = (
        column
        for column, cell in enumerate(cells)
        if re.search("[A-Za-z]", cell) and find(cell, facts.gpus) is not None
    )
    return next(with_maker, next(known, None))


def _at(cells: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    return next((column for column, cell in enumerate(cells) if pattern.fullmatch(cell)), None)
