from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path

import pytest

from envkit.verify.payload import strip_source

ROOT = Path(str(resources.files("envkit")))
CARRIED = [*sorted((ROOT / "smoke").rglob("*.py")), *sorted((ROOT / "checks").glob("*/observe.py"))]
SOURCE = '''"""What the module does.

Over several lines, with ä and "quotes".
"""
# a remark
import os  # why


class Empty(Exception):  # noqa: X
    """Nothing else here."""


def text():
    """One line."""
    return """not a docstring # and no remark"""  # but this is


def only():
    r"""Raw \\d, ü."""; value = "#"
    return value
'''


def code(source: str) -> str:
    """The syntax tree without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def test_docstrings_and_remarks_go_and_lines_stay_where_they_were() -> None:
    found = strip_source(SOURCE)
    lines = found.splitlines()
    assert len(lines) == len(SOURCE.splitlines())
    assert lines[5] == "import os"
    assert lines[8:10] == ["class Empty(Exception):", ' ""']
    assert lines[14] == ' return """not a docstring # and no remark"""'
    assert lines[18] == ' "";value="#"'
    assert "What the module does" not in found


@pytest.mark.parametrize("path", CARRIED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_payload_does_the_same_without_them(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    found = strip_source(source)
    ast.parse(found, feature_version=(3, 8))
    assert code(found) == code(source)
    assert len(found.splitlines()) == len(source.splitlines())


def test_lines_inside_of_a_string_keep_their_spaces() -> None:
    found = strip_source('def text():\n    if True:\n        return """a\n        b # c\n    d"""\n')
    assert found == 'def text():\n if True:\n  return """a\n        b # c\n    d"""\n'


def test_spaces_that_mean_nothing_go_and_names_stay() -> None:
    source = "def text(first, second=1):\n    return [\n        first + second,\n        'a + b',\n    ]\n"
    assert strip_source(source) == "def text(first,second=1):\n return[\nfirst+second,\n'a + b',\n]\n"


def test_a_formatted_string_keeps_its_spaces() -> None:
    assert strip_source('text = f"{first + second} + { third }"\n') == 'text=f"{first + second} + { third }"\n'


def test_what_is_not_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        strip_source("def broken(:\n")
