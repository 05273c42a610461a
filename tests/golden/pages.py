"""Parts of documentation pages that are made from data: the tables of checks and of GPUs in docs/verify.md."""

from pathlib import Path

from envkit.checks.catalog import catalog
from tests.support import gpu_families

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "verify.md"
BEGIN = "<!-- The table is made from envkit/checks/*/check.yaml by `python -m tests.golden --update`. -->\n"
END = "<!-- end of the table -->\n"
GPUS = "<!-- The table is made from tests/support/gpu_families.py by `python -m tests.golden --update`. -->\n"


def checks_table() -> str:
    """Return the table of every check by its id."""
    rows = [
        f"| {entry.id} | {entry.title} | {entry.tier} | {entry.needs} | {entry.verifies} | {entry.counts} |"
        for entry in sorted(catalog(), key=lambda entry: entry.id)
    ]
    head = ["| check | | tier | needs | verifies | counts |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def verify_page() -> bytes:
    """Return docs/verify.md with the tables of today between their marks."""
    page = PAGE.read_text(encoding="utf-8")
    for begin, table in ((BEGIN, checks_table()), (GPUS, gpu_families.table())):
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(END)
        page = f"{before}{begin}{table}{END}{after}"
    return page.encode()
