"""What checks show of a prepared record: the findings of one check, and a table by the start of its title."""

from __future__ import annotations

from typing import Any

from envkit.checks.shown import Sheet
from envkit.report.measured import sheets


def of(checks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The findings of one check."""
    return [item for item in checks if item["id"].startswith(name)]


def named(tree: dict[str, Any], begin: str) -> Sheet:
    """The one table of a record whose title begins so."""
    (found,) = [sheet for sheet in sheets(tree["checks"]) if sheet.title.startswith(begin)]
    return found
