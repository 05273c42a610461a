"""C22: the rate of each kind of access to storage, past the page cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, mapping, number
from envkit.checks.sheet import Sheet, Shown, cell, tables
from envkit.ground.text import clean

_ACCESSES = {
    "C22.image_read": ("sequential read", "gb_per_s", "GB/s", ".2f"),
    "C22.image_random": ("random reads of 4 KiB", "reads_per_s", "reads/s", ".0f"),
    "C22.data_read": ("sequential read of your files", "gb_per_s", "GB/s", ".2f"),
    "C22.data_random": ("random reads of 4 KiB of your files", "reads_per_s", "reads/s", ".0f"),
    "C22.scratch_write": ("write and sync", "gb_per_s", "GB/s", ".2f"),
}


@dataclass(frozen=True, slots=True)
class Access:
    """One kind of access to storage. `cached` says that the page cache may have served the data."""

    what: str
    rate: float
    unit: str
    form: str  # format of the rate
    filesystem: str
    cached: bool


def accesses(checks: Sequence[Tree]) -> list[Access]:
    """Return C22's reads and writes, in the order of the record."""
    measured = []
    for check in checks:
        observed = mapping(check.get("observed"))
        what, key, unit, form = _ACCESSES.get(str(check["id"]), ("", "", "", ""))
        rate = number(observed.get(key))
        if rate is not None:
            kind = clean(observed.get("filesystem") or "unknown")
            measured.append(Access(what, rate, unit, form, kind, observed.get("direct") is False))
    return measured


def _sheet(measured: Sequence[Access]) -> Sheet:
    rows = [[item.what, item.filesystem, f"{cell(item.rate, item.form)} {item.unit}"] for item in measured]
    cached = [item.what for item in measured if item.cached]
    note = f"May include the page cache: {', '.join(cached)}."
    return Sheet(
        title="Storage, past the page cache",
        head=("access", "file system", "rate"),
        rows=rows,
        left=2,
        notes=(note,) if cached else (),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the throughput of storage, past the page cache."""
    return Shown(
        ident="storage",
        title="Storage",
        sheets=tables(_sheet(accesses(checks))),
        remark="Measured on the file systems of the image and the scratch folder. With --data, your files are read"
        " instead of the image's.",
    )
