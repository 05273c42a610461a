from __future__ import annotations

from pathlib import Path

from envkit.checks.c23_training import judge as c23_training
from envkit.checks.catalog import catalog

PAGE = (Path(__file__).parents[3] / "docs" / "verify.md").read_text(encoding="utf-8")


def rows(prefix: str) -> list[list[str]]:
    """Cells of the page's table rows that begin with a prefix."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith(prefix)
    ]


def test_the_page_lists_every_check_as_it_is() -> None:
    listed = [row[:4] for row in rows("| C")]
    assert listed == [
        [entry.id, entry.title, entry.tier, entry.needs] for entry in sorted(catalog(), key=lambda e: e.id)
    ]


def test_the_page_says_of_every_check_what_it_proves_and_what_it_counts_for() -> None:
    assert all(len(row) == 6 and all(row) for row in rows("| C"))


def test_the_page_names_every_bottleneck() -> None:
    named = {row[0].strip("`") for row in rows("| `") if len(row) == 2}
    assert named == set(c23_training.BOTTLENECKS)
