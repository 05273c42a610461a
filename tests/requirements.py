"""The requirements and their tests; `python -m tests.requirements [--check|--update]` checks or writes the page.

The page is contributing/reliability.md. The requirements are data (requirements.yaml); a test names the one
that it covers by `@pytest.mark.requirement("R21")`. Marks are read from the sources, so no test has to be collected.
"""

import ast
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envkit.cli.main import COMMANDS
from tests.hostile.load import archives, texts
from tests.hostile.model import Case

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "contributing" / "reliability.md"
_DATA = Path(__file__).with_suffix(".yaml")
_FIELDS = {"id", "group", "text", "figure", "missing", "commands"}
_SHOWN = 4  # tests of one row; more are counted
_HEAD = """# Reliability requirements and their tests

`envkit` runs untrusted code and reads untrusted files. It has {count} requirements on hostile input and faults: {held}
are met; {partly} are met in part, and the tables say what is missing. Tests have pytest's mark `requirement`;
`python -m tests.requirements --update` writes this page from them. Figures are single measurements on a machine with
two cores. `tried with` lists the commands with which hostile inputs or faults were tried; it is empty where only parts
of the program were. [SECURITY.md](../SECURITY.md) describes who is trusted.
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement; `missing` describes the part that is not met or not tested."""

    id: str
    group: str
    text: str
    figure: str | None = None
    missing: str | None = None
    commands: tuple[str, ...] = ()  # that were tried by benchmarks and by tests without a mark


def read() -> tuple[Requirement, ...]:
    """Return the requirements in their order."""
    rows: list[dict[str, Any]] = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    assert all(set(row) <= _FIELDS for row in rows)
    return tuple(Requirement(**{**row, "commands": tuple(row.get("commands", ()))}) for row in rows)


def tried(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Return the commands with which hostile inputs were tried, by requirement.

    Every input is one of R4 (no traceback); one with a link or a named pipe is also one of R11.
    """
    commands: dict[str, set[str]] = {"R4": set(), "R11": set()}
    for case in cases:
        if not case.run:
            continue  # an archive, which says its command only when it is made
        words = case.run
        if words[0] not in {*COMMANDS, "--api"}:
            continue  # a command that does not exist
        name = f"API: {words[1]}" if words[0] == "--api" else words[0]
        name = " ".join(words[:2]) if words[0] in ("matrix", "cache") else name
        for requirement in ("R4", "R11") if case.links or case.pipes else ("R4",):
            commands[requirement].add(name)
    return commands


def hostile() -> dict[str, set[str]]:
    """Return `tried` for the inputs of tests/hostile."""
    return tried((*texts(), *archives()))


def marks(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the tests of each requirement, as `tests/oci/test_x.py::test_y`, in order."""
    tests: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "requirement(" in source:
            for name, ids in _marked(ast.parse(source)):
                for requirement in ids:
                    tests.setdefault(requirement, []).append(f"{path.relative_to(root)}::{name}")
    return tests


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    nodes: Sequence[ast.AST] = [
        *tree.body,
        *(node for part in tree.body if isinstance(part, ast.ClassDef) for node in part.body),
    ]
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            ids = [text for mark in node.decorator_list for text in _ids(mark)]
            if ids:
                yield node.name, ids


def _ids(mark: ast.expr) -> list[str]:
    if not (isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "requirement"):
        return []
    return [str(argument.value) for argument in mark.args if isinstance(argument, ast.Constant)]


def page(
    rows: Sequence[Requirement], tests: dict[str, list[str]], commands: Mapping[str, Collection[str]] | None = None
) -> str:
    """Return the text of contributing/reliability.md; `commands` adds to those of the rows."""
    partly = sum(row.missing is not None for row in rows)
    lines = [_HEAD.format(count=len(rows), held=len(rows) - partly, partly=partly)]
    for group in dict.fromkeys(row.group for row in rows):
        lines += [
            f"## {group}",
            "",
            "| | requirement | met | tried with | tests | figure |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row.group == group:
                met = "yes" if row.missing is None else f"partly: {row.missing}"
                names = sorted({*row.commands, *(commands or {}).get(row.id, ())})
                cells = (row.id, row.text, met, ", ".join(names), _links(tests.get(row.id, [])), row.figure or "")
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _links(tests: Sequence[str]) -> str:
    links = [f"[{name}](../{path})" for path, name in (test.split("::") for test in tests[:_SHOWN])]
    more = len(tests) - _SHOWN
    return "; ".join(links) + (f"; {more} more" if more > 0 else "")


def faults(rows: Sequence[Requirement], tests: dict[str, list[str]]) -> list[str]:
    """Return an error for each mark with an unknown ID, and for each requirement with neither a test nor `missing`."""
    known = {row.id for row in rows}
    unknown = [
        f"{test} marks the unknown requirement {name}"
        for name, marked in tests.items()
        if name not in known
        for test in marked
    ]
    return unknown + [f"{row.id} has no test" for row in rows if row.id not in tests and row.missing is None]


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; return 1 if there is an error."""
    rows, tests = read(), marks()
    wrong = faults(rows, tests)
    text = page(rows, tests, hostile())
    if arguments == ["--update"]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        wrong.append("contributing/reliability.md is out of date: python -m tests.requirements --update")
    print("\n".join(wrong) or f"{len(rows)} requirements, {sum(map(len, tests.values()))} marks")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
