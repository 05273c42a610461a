"""The tables of the snapshot: their row classes, keys and JSON form."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from envkit.facts import model

SCHEMA = "envkit.facts/1"

SOURCES = ("pytorch", "pypi", "conda-forge", "conda-pytorch")
CONFIDENCES = (None, "inferred", "conflict", "unknown")  # None = sourced


@dataclass(frozen=True, slots=True)
class Table:
    """A table of `Facts`: its field name there, its row class and the fields that identify a row."""

    name: str
    row: type[Any]
    key: tuple[str, ...]

    def key_of(self, row: Any) -> tuple[Any, ...]:
        """Return the key of `row`."""
        return tuple(getattr(row, name) for name in self.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The field names of the row class, in order."""
        return tuple(field.name for field in fields(self.row))


TABLES: tuple[Table, ...] = (
    Table("releases", model.Release, ("torch",)),
    Table("builds", model.Build, ("torch", "cuda", "source", "platform")),
    Table("companions", model.Companion, ("package", "version", "index", "platform")),
    Table("toolkits", model.ToolkitDriver, ("toolkit",)),
    Table("compat", model.MinorCompat, ("cuda_major",)),
    Table("forward", model.ForwardCompat, ("toolkit",)),
    Table("gpus", model.Gpu, ("capability",)),
    Table("oses", model.Os, ("id",)),
    Table("pythons", model.PythonSeries, ("python",)),
    Table("cudnns", model.Cudnn, ("cudnn", "cuda_major", "linux_min_driver")),
    Table("cuda_images", model.CudaImage, ("cuda",)),
    Table("base_images", model.BaseImage, ("image", "tag")),
    Table("package_needs", model.PackageNeeds, ("package",)),
    Table("installers", model.Installer, ("file",)),
    Table("traps", model.Trap, ("id",)),
)
BY_NAME: Mapping[str, Table] = {table.name: table for table in TABLES}


def encode(table: Table, rows: Iterable[Any]) -> dict[str, Any]:
    """Return a table as column names and rows of values; tuples become lists."""
    columns = table.columns
    return {"columns": list(columns), "rows": [[getattr(row, name) for name in columns] for row in rows]}


def decode(table: Table, encoded: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the rows of an encoded table; lists become tuples."""
    columns, kind = tuple(encoded["columns"]), table.row
    if columns != table.columns:
        raise ValueError(f"the table {table.name} has the columns {', '.join(columns)}")
    # The slots are filled directly: a frozen class's own __init__ takes three times as long, in every `envkit resolve`.
    fill = tuple(getattr(kind, name).__set__ for name in columns)
    new = object.__new__
    rows = []
    for values in encoded["rows"]:
        row = new(kind)
        for place, value in zip(fill, values, strict=True):
            place(row, tuple(value) if type(value) is list else value)
        rows.append(row)
    return tuple(rows)


def checksum(rest: bytes) -> str:
    """Return the CRC-32 (hex) of a snapshot's text after its first line, which detects edits by hand.

    SHA-256 would load OpenSSL (5 MB of memory and 3 ms in every `envkit resolve`) without more security: anyone who can
    change the text can also change the checksum next to it.
    """
    return f"{zlib.crc32(rest):08x}"
