from __future__ import annotations

from pathlib import Path

from envkit.checks.c23_training import judge as c23_training

PAGE = (Path(__file__).parents[4] / "docs" / "verify.md").read_text(encoding="utf-8")


def rows(prefix: str) -> list[list[str]]:
    """Cells of the page's table rows that begin with a prefix."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith(prefix)
    ]


def test_the_page_names_every_bottleneck() -> None:
    named = {row[0].strip("`") for row in rows("| `") if len(row) == 2}
    assert named == set(c23_training.BOTTLENECKS)
