"""Commands of a Dockerfile that install the project itself: its requirements are those of the image."""

from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.project.definition import Drafted, draft

FACTS = load_facts()
PYPROJECT = """[project]
name = "demo"
requires-python = ">=3.10"
dependencies = ["torch==2.8.0", "einops"]
[project.optional-dependencies]
fast = ["ninja"]
[dependency-groups]
web = ["flask"]
"""
SETUP = "from setuptools import setup\nsetup(install_requires=['torch==2.8.0', 'einops'])\n"


def drafted(folder: Path, *lines: str) -> Drafted:
    (folder / "Dockerfile").write_text("\n".join(("FROM python:3.11-slim", "WORKDIR /app", *lines)) + "\n")
    return draft("Dockerfile", folder, FACTS)


def values(made: Drafted, *fields: str) -> list[str]:
    return [one.value for one in made.taken if one.field in fields]


def lost(made: Drafted) -> list[str]:
    return [row.line.text for row in made.skipped if not row.harmless]


@pytest.mark.parametrize(
    ("lines", "pip"),
    [
        (["COPY . .", "RUN pip install ."], ["einops"]),
        (["COPY . .", "RUN pip install --no-cache-dir -e ."], ["einops"]),
        (["COPY . /app", "RUN pip install -e '.[fast]'"], ["einops", "ninja"]),
        (["COPY . /src", "RUN pip install /src[fast] tqdm"], ["einops", "ninja", "tqdm"]),
        (["COPY . /src", "RUN cd /src && python -m pip install ./"], ["einops"]),
        (["COPY pyproject.toml ./", "RUN uv sync --no-dev"], ["einops"]),
        (["COPY pyproject.toml uv.lock ./", "RUN uv sync --frozen --extra fast"], ["einops", "ninja"]),
        (["COPY . .", "RUN uv sync --locked --group web --no-install-project"], ["einops", "flask"]),
        (
            [
                (
                    "RUN --mount=type=cache,target=/root/.cache/uv "
                    "--mount=type=bind,source=pyproject.toml,target=pyproject.toml uv sync --no-install-project"
                )
            ],
            ["einops"],
        ),
    ],
)
def test_the_requirements_of_the_project_are_taken(lines: list[str], pip: list[str], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    made = drafted(tmp_path, *lines)
    assert (values(made, "torch"), sorted(values(made, "pip"))) == (["==2.8.0"], pip)
    assert any("its requirements are taken over" in row.why for row in made.skipped)


def test_a_setup_py_is_such_a_project(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(SETUP)
    made = drafted(tmp_path, "COPY . .", "RUN pip install .")
    assert (values(made, "torch"), values(made, "pip")) == (["==2.8.0"], ["einops"])


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["RUN git clone https://code.example.org/a /a", "RUN pip install /a"], "/a"),
        (["COPY . .", "RUN cd $HOME && pip install -e ."], "-e ."),
        (["COPY . .", "RUN if [ -f x ]; then uv sync; fi"], "uv sync"),
    ],
)
def test_a_project_that_is_not_in_the_context_is_lost(lines: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    made = drafted(tmp_path, *lines)
    assert (values(made, "torch"), text in lost(made)) == ([], True)


def test_an_extra_that_the_project_does_not_have_is_lost(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    made = drafted(tmp_path, "COPY . .", "RUN uv sync --extra gpu")
    assert [row.why for row in made.skipped] == ["the project has no extra 'gpu'"]
