"""Which tests hold which requirement; `python -m tests.requirements [--check|--update]` checks or writes the page.

The page is docs/reliability.md. The requirements are data (requirements.yaml); a test says what it holds by
`@pytest.mark.requirement("R21")`. The marks are read from the sources, so that no test has to be collected.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"
_DATA = Path(__file__).with_suffix(".yaml")
_FIELDS = {"id", "group", "text", "figure", "missing"}
_SHOWN = 4  # tests of one row; more are counted
_HEAD = """# Reliability: what holds, and which test says so

`envkit` runs foreign code and reads what strangers wrote. These are its {count} requirements on hostile input and
faults: {held} hold and {partly} hold in part, with what is missing. The tests carry pytest's mark `requirement`;
`python -m tests.requirements --update` writes this page from them. Figures are single measurements on a machine with
two cores. [SECURITY.md](../SECURITY.md) says who is trusted.
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One promise; `missing` says what of it is not kept or not tested."""

    id: str
    group: str
    text: str
    figure: str | None = None
    missing: str | None = None


def read() -> tuple[Requirement, ...]:
    """Return the requirements in their order."""
    rows: list[dict[str, Any]] = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    assert all(set(row) <= _FIELDS for row in rows)
    return tuple(Requirement(**row) for row in rows)


def marks(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the tests of each requirement, as `tests/oci/test_x.py::test_y`, in order."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "requirement(" in source:
            for name, ids in _marked(ast.parse(source)):
                for one in ids:
                    found.setdefault(one, []).append(f"{path.relative_to(root)}::{name}")
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    nodes: Sequence[ast.AST] = [
        *tree.body,
        *(one for part in tree.body if isinstance(part, ast.ClassDef) for one in part.body),
    ]
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            ids = [text for mark in node.decorator_list for text in _ids(mark)]
            if ids:
                yield node.name, ids


def _ids(mark: ast.expr) -> list[str]:
    if not (isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "requirement"):
        return []
    return [str(one.value) for one in mark.args if isinstance(one, ast.Constant)]


def page(rows: Sequence[Requirement], tests: dict[str, list[str]]) -> str:
    """Return the text of docs/reliability.md."""
    partly = sum(one.missing is not None for one in rows)
    lines = [_HEAD.format(count=len(rows), held=len(rows) - partly, partly=partly)]
    for group in dict.fromkeys(one.group for one in rows):
        lines += [f"## {group}", "", "| | requirement | holds | tests | figure |", "|---|---|---|---|---|"]
        for one in rows:
            if one.group == group:
                holds = "yes" if one.missing is None else f"partly: {one.missing}"
                cells = (one.id, one.text, holds, _links(tests.get(one.id, [])), one.figure or "")
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _links(tests: Sequence[str]) -> str:
    told = [f"[{name}](../{path})" for path, name in (one.split("::") for one in tests[:_SHOWN])]
    more = len(tests) - _SHOWN
    return "; ".join(told) + (f"; {more} more" if more > 0 else "")


def faults(rows: Sequence[Requirement], tests: dict[str, list[str]]) -> list[str]:
    """Return marks that name no requirement, and requirements that neither have a test nor say what is missing."""
    known = {one.id for one in rows}
    unknown = [
        f"{place} marks {one}, which is no requirement" for one in tests if one not in known for place in tests[one]
    ]
    return unknown + [f"{one.id} has no test" for one in rows if one.id not in tests and one.missing is None]


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; 1 where something is wrong."""
    rows, tests = read(), marks()
    wrong = faults(rows, tests)
    text = page(rows, tests)
    if arguments == ["--update"]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        wrong.append("docs/reliability.md is out of date: python -m tests.requirements --update")
    print("\n".join(wrong) or f"{len(rows)} requirements, {sum(map(len, tests.values()))} marks")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
