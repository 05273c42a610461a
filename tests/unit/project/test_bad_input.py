"""Project files that are broken, endless or contradict themselves: one error each, or an item in a list."""

import time
from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.ground.errors import UsageError
from envkit.project.choice import Choice
from envkit.project.definition import Drafted, draft, load

FACTS = load_facts()


def drafted(folder: Path, name: str, text: str, choice: Choice | None = None) -> Drafted:
    (folder / name).write_text(text)
    return draft(name, folder, FACTS, choice=choice or Choice())


def values(made: Drafted, *fields: str) -> list[str]:
    return [one.value for one in made.taken if one.field in fields]


def test_files_that_include_many_others_are_read_once(tmp_path: Path) -> None:
    # Each level includes all of the next one: 8 files are 5,764,801 ways through them.
    for level in range(8):
        (tmp_path / f"r{level}.txt").write_text(
            f"-r r{level + 1}.txt\n" * 7 + f"pkg{level}\n" if level < 7 else "torch\n"
        )
    begin = time.monotonic()
    made = draft("r0.txt", tmp_path, FACTS)
    assert values(made, "torch") == [""]
    assert time.monotonic() - begin < 20  # seconds; endless without a limit


def test_files_that_include_each_other_in_a_ring_are_one_error(tmp_path: Path) -> None:
    for at in range(3):
        (tmp_path / f"r{at}.txt").write_text(f"-r r{(at + 1) % 3}.txt\n")
    with pytest.raises(UsageError, match=r"r0\.txt includes itself"):
        draft("r0.txt", tmp_path, FACTS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"\nversion = ' + "9" * 5000 + "\n"),
        ("pixi.toml", "[workspace]\nx = " + "9" * 5000 + "\n"),
        ("Pipfile", "[packages]\nx = " + "9" * 5000 + "\n"),
        ("other.toml", "x = " + "9" * 5000 + "\n"),
    ],
)
def test_a_number_of_5000_digits_is_one_error(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="digits"):
        drafted(tmp_path, name, text)


@pytest.mark.parametrize(
    "line", ["torch==" + "9" * 5000, "einops==1." + "9" * 5000, "x ; python_version > '" + "9" * 5000 + "'"]
)
def test_a_version_of_5000_digits_is_lost_by_name(line: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "requirements.txt", f"tqdm\n{line}\n")
    assert [(row.line.where, row.harmless) for row in made.skipped] == [("requirements.txt:2", False)]


def test_300_requirements_with_builds_keep_their_versions(tmp_path: Path) -> None:
    rows = "".join(f"  - pkg{at}=1.{at}=py310h{at:07x}_0\n" for at in range(300))
    made = drafted(tmp_path, "environment.yml", f"dependencies:\n  - python=3.10.9=h7a1cb2a_2\n{rows}")
    assert values(made, "conda") == [f"pkg{at}=1.{at}" for at in range(300)]
    assert made.skipped == ()
    _, notes = load(str(tmp_path / "environment.yml"), FACTS)
    assert len(notes) == 2  # the Python, and the builds


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_dockerfile_of_5000_lines(ending: str, tmp_path: Path) -> None:
    lines = ["# escape=\\", "FROM python:3.11-slim", "RUN pip install torch==2.6.0 \\"]
    lines += [f"    pkg{at} \\" for at in range(2400)] + ["    einops"]
    lines += [f"ENV V{at}=x" for at in range(100)] + [f"RUN echo {at} && pip install more{at}" for at in range(2497)]
    (tmp_path / "Dockerfile").write_bytes((ending.join(lines) + ending).encode())
    begin = time.monotonic()
    made = draft("Dockerfile", tmp_path, FACTS)
    assert len(lines) == 5001
    assert len(values(made, "pip")) == 2400 + 1 + 2497
    assert time.monotonic() - begin < 60


def test_a_dockerfile_with_another_escape_and_crlf_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"# escape=`\r\nFROM python:3.11\r\nRUN pip install `\r\n  torch\r\n")
    with pytest.raises(UsageError, match="escape=` is not supported"):
        draft("Dockerfile", tmp_path, FACTS)


EXTRAS = """[project]
name = "x"
dependencies = ["einops"]
[project.optional-dependencies]
old = ["torch==2.4.0"]
new = ["torch==2.6.0"]
low = ["numpy<1.20"]
high = ["numpy==2.1.0"]
"""


@pytest.mark.parametrize(("extras", "line"), [(("old", "new"), "torch==2.6.0"), (("low", "high"), "numpy==2.1.0")])
def test_extras_that_contradict_each_other_are_an_error(extras: tuple[str, ...], line: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "pyproject.toml", EXTRAS, Choice(extras=extras))
    assert [(row.line.text, row.excluded) for row in made.skipped if row.excluded] == [(line, True)]
    with pytest.raises(UsageError, match="contradicts"):
        load(str(tmp_path / "pyproject.toml"), FACTS, choice=Choice(extras=extras))


@pytest.mark.parametrize("name", ["setup.py", "environment.yml", "cog.yaml", "setup.cfg"])
def test_an_empty_file_is_one_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError) as caught:
        draft(name, tmp_path, FACTS)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "pixi.toml", "Pipfile", "Dockerfile"])
def test_an_empty_file_without_requirements_is_an_empty_definition(name: str, tmp_path: Path) -> None:
    assert values(drafted(tmp_path, name, ""), "pip", "conda", "torch") == []


def test_code_of_a_setup_py_is_never_run(tmp_path: Path) -> None:
    text = (
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nfrom setuptools import setup\nsetup(install_requires=['a'])\n"
    )
    assert values(drafted(tmp_path, "setup.py", text), "pip") == ["a"]
    assert not (tmp_path / "ran").exists()
