"""Parts of documentation pages that are made from data: tables in docs/verify.md, the reference in docs/api.md."""

import inspect
import re
from pathlib import Path

from envkit import api
from envkit.checks.catalog import catalog
from tests.support import gpu_families

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "verify.md"
BEGIN = "<!-- The table is made from envkit/checks/*/check.yaml by `python -m tests.golden --update`. -->\n"
API_PAGE = ROOT / "docs" / "api.md"
API = "<!-- The reference is made from envkit/api.py by `python -m tests.golden --update`. -->\n"
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
    return _filled(PAGE, {BEGIN: checks_table(), GPUS: gpu_families.table()})


def api_page() -> bytes:
    """Return docs/api.md with the reference of today between its marks."""
    functions = (api.resolve, api.plan, api.lock, api.read_lock, api.write_lock, api.build, api.verify)
    return _filled(API_PAGE, {API: "\n".join([_wanted(), *map(_reference, functions)])})


def _filled(path: Path, parts: dict[str, str]) -> bytes:
    page = path.read_text(encoding="utf-8")
    for begin, part in parts.items():
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(END)
        page = f"{before}{begin}{part}{END}{after}"
    return page.encode()


def _wanted() -> str:
    """Return the table of the keys of `Wanted`, from its comments."""
    rows = re.findall(r"^    (\w+): ([^#\n]+?)(?:  # (.*))?$", inspect.getsource(api.Wanted), re.MULTILINE)
    lines = [f"| `{name}` | `{kind.replace('|', chr(92) + '|')}` | {text} |" for name, kind, text in rows]
    return "\n".join(["| key of `Wanted` | type | meaning |", "|---|---|---|", *lines]) + "\n"


def _reference(function: object) -> str:
    """Return one function: its signature, and the parts of its docstring as paragraphs and lists."""
    assert inspect.isfunction(function)
    text = inspect.getdoc(function) or ""
    signature = inspect.getsource(function).partition('\n    """')[0].removeprefix("def ").removesuffix(":")
    about, *parts = re.split(r"^(Args|Returns|Raises):\n", text, flags=re.MULTILINE)
    lines = [
        f"### {function.__name__}",
        "",
        "```python",
        signature.replace("_SILENT", "..."),
        "```",
        "",
        about.strip(),
        "",
    ]
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        if head == "Returns":
            lines += [f"Returns: {' '.join(body.split())}", ""]
            continue
        items = re.sub(r"\n +", " ", inspect.cleandoc("\n" + body)).splitlines()
        listed = [re.sub(r"^([\w, ]+):", r"- `\1`:", item) for item in items]
        lines += ["Arguments:" if head == "Args" else "Errors:", "", *listed, ""]
    return "\n".join(lines)
