"""No text that envkit prints, generates or documents installs envkit by its name from an index."""

import tomllib
from pathlib import Path

import pytest

from envkit.ground.naming import DISTRIBUTION
from tests.support.installs import by_name

ROOT = Path(__file__).parents[2]
PLACES = (
    "envkit", "templates", "images", "docs", "website", "man", "ci", ".github", "tests/golden/files", "README.md",
    "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "action.yml", "Makefile", "Dockerfile", "environment.yml",
    ".pre-commit-hooks.yaml", "pyproject.toml", "CITATION.cff",
)  # fmt: skip
# Addresses that were claimed without being owned.
CLAIMED = ("io.github.envkit", "envkit.github.io", "github.com/envkit")


def files(place: str) -> list[Path]:
    path = ROOT / place
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return [one for one in found if one.is_file() and "__pycache__" not in one.parts and one.suffix != ".png"]


@pytest.mark.parametrize("place", PLACES)
def test_no_text_installs_envkit_by_its_name(place: str) -> None:
    assert files(place)
    texts = {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in files(place)}
    assert {name: lines for name, text in texts.items() if (lines := by_name(text))} == {}
    assert [name for name, text in texts.items() if any(claim in text for claim in CLAIMED)] == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install envkit", "python -m pip install envkit==0.2.0", "hint: pip install 'envkit[attest]'",
        'pip install "envkit[fleet]==0.2.0"   # where the scheduler runs', "uv pip install -U envkit-gpu",
        "pipx install envkit", "uvx envkit version", "uvx --quiet envkit", "REQUIREMENT: envkit==1.2.3",
        '"default": "envkit==0.2.0",', "pip install --force-reinstall envkit restores the file", "envkit-gpu>=0.2",
        "RUN pip install --no-cache-dir click envkit", "pip install . envkit", "conda install -c conda-forge envkit",
    ],
)  # fmt: skip
def test_such_a_text_is_found(line: str) -> None:
    assert by_name(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "pip install .", "pip install ./envkit_gpu-*.whl", "pip install './envkit_gpu-0.2.0-py3-none-any.whl[attest]'",
        "pip install 'cryptography>=43'", f"envkit-gpu==0.2.0 --hash=sha256:{'a' * 64}", "uvx --from ./x.whl envkit",
        "pip install . && envkit version", "The jobs install envkit with a hash.", "envkit install --cpu",
        "pip install -U trl (and peft). It is of its time. envkit lock keeps it.",
        "Run pip install trl. envkit lock keeps it.",
        'python -m pip install "$wheels"/envkit_gpu-*.whl', 'if name == "envkit":',
    ],
)  # fmt: skip
def test_other_texts_are_not(line: str) -> None:
    assert by_name(line) == []


def test_the_project_has_the_name_of_the_constant_and_claims_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"envkit": "envkit.__main__:main"}
    assert "urls" not in project


def test_the_readme_says_that_nothing_is_published() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"not published on a package index yet; its distribution is called `{DISTRIBUTION}`" in text
