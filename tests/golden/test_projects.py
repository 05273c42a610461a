"""The files of public projects become the definitions that are kept, and each of them resolves and renders."""

from pathlib import Path

import pytest

from envkit.render import lint
from envkit.render.model import SYNTAXES
from envkit.render.render import render
from tests.golden.cases import FOLDER
from tests.golden.projects import NAMES, RENDERED, drafted, plan, projects

UPDATE = "run `python -m tests.golden --update` if this change is meant"
KEPT = {FOLDER / folder / name: data for folder, name, data in projects()}


@pytest.mark.parametrize("path", sorted(KEPT), ids=lambda path: str(path.relative_to(FOLDER)))
def test_files_are_as_kept(path: Path) -> None:
    assert path.read_text() == KEPT[path].decode(), UPDATE


def test_the_five_projects_are_there() -> None:
    assert NAMES == ("cog", "dockerfile", "environment", "pyproject", "requirements")


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_resolves_to_what_the_project_asks(name: str) -> None:
    assert drafted(name).conflict is None
    found = plan(name).resolution
    expected = {
        "cog": ("2.2.2", "12.1", "3.11"),
        "dockerfile": ("2.3.1", "12.1", "3.10"),
        "environment": ("2.1.2", "12.1", "3.10"),
        "pyproject": ("2.6.0", "12.4", "3.12"),
        "requirements": ("2.0.1", "11.8", "3.10"),
    }
    assert (found.torch, found.cuda, found.python) == expected[name]


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("name", NAMES)
def test_a_definition_renders_without_lint_errors(name: str, syntax: str) -> None:
    found = lint.check(render(plan(name), syntax=syntax))
    assert [str(item) for item in found if item.severity == "error"] == []


def test_the_context_holds_the_files_of_the_project() -> None:
    files = render(plan(RENDERED)).files
    assert {name for name in files if name.startswith("copied/")} == {
        "copied/0/requirements.txt",
        "copied/1/train.py",
        "copied/2/base.yaml",
    }
