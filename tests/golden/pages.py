"""Parts of documentation pages that are made from data: the table of checks in docs/verify.md."""

from pathlib import Path

from envkit.checks.catalog import catalog

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "verify.md"
BEGIN = "<!-- The table is made from envkit/checks/*/check.yaml by `python -m tests.golden --update`. -->\n"
END = "<!-- end of the table -->\n"


def checks_table() -> str:
    """Return the table of every check by its id."""
    rows = [
        f"| {entry.id} | {entry.title} | {entry.tier} | {entry.needs} | {entry.verifies} | {entry.counts} |"
        for entry in sorted(catalog(), key=lambda entry: entry.id)
    ]
    head = ["| check | | tier | needs | verifies | counts |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def verify_page() -> bytes:
    """Return docs/verify.md with the table of today between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{checks_table()}{END}{after}".encode()
