"""The part of a documentation page that is made from code: the reference in docs/api.md."""

import inspect
import re
from pathlib import Path

from envkit import api

ROOT = Path(__file__).parents[2]
API_PAGE = ROOT / "docs" / "api.md"
API = "<!-- The reference is made from envkit/api.py by `python -m tests.golden --update`. -->\n"
END = "<!-- end of the reference -->\n"


def api_page() -> bytes:
    """Return docs/api.md with the reference of today between its marks."""
    functions = (api.resolve, api.plan, api.lock, api.read_lock, api.write_lock, api.build, api.verify)
    before, _, rest = API_PAGE.read_text(encoding="utf-8").partition(API)
    _, _, after = rest.partition(END)
    made = "\n".join([_wanted(), *map(_reference, functions)])
    return f"{before}{API}{made}{END}{after}".encode()


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
