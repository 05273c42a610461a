"""Find the findings of a check and a table by the start of its title in a prepared record."""

from __future__ import annotations

from typing import Any

from envkit.checks.sheet import Sheet
from envkit.report.measured import sheets


def of(checks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the findings of one check."""
    return [item for item in checks if item["id"].startswith(name)]


def named(tree: dict[str, Any], begin: str) -> Sheet:
    """Return the only table of a record whose title starts with `begin`."""
    (table,) = [sheet for sheet in sheets(tree["checks"]) if sheet.title.startswith(begin)]
    return table
