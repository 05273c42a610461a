"""`python -m tests.words`: the words of every page of the documentation, most first.

The pages of docs/reference are made from code and data and are counted apart; everything else counts, tables and
commands included. Chinese text has no spaces: of it, a run of characters between spaces is a word.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 45_000
"""The most words that the documentation may have, without docs/reference."""

MADE = "<!-- Made from"
"""What the comment on a page begins with that no one writes by hand."""


def counted(root: Path = ROOT) -> dict[str, int]:
    """Return the words of README.md and of every page below docs, by path."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return {str(page.relative_to(root)): len(page.read_text(encoding="utf-8").split()) for page in pages}


def is_reference(page: str) -> bool:
    """Return whether a page is one of those that are made from code and data."""
    return page.startswith("docs/reference/")


def written(words: dict[str, int]) -> int:
    """Return the sum of the pages that people write."""
    return sum(count for page, count in words.items() if not is_reference(page))


def main() -> None:
    """Print the table."""
    words = counted()
    rows = sorted(words.items(), key=lambda item: (is_reference(item[0]), -item[1]))
    lines = [f"{count:7,}  {page}" for page, count in rows]
    lines += [f"{written(words):7,}  written, of at most {LIMIT:,}"]
    lines += [f"{sum(words.values()) - written(words):7,}  made from code and data (docs/reference)"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
