"""Pipfile, setup.cfg, setup.py and cog's commands, each with what it has to become."""

from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.ground.errors import UsageError
from envkit.project.choice import Choice
from envkit.project.definition import Drafted, draft, is_project

FACTS = load_facts()


def drafted(folder: Path, name: str, text: str, **choice: tuple[str, ...]) -> Drafted:
    (folder / name).write_text(text)
    return draft(name, folder, FACTS, choice=Choice(**choice))  # type: ignore[arg-type]


def values(made: Drafted, *fields: str) -> list[str]:
    return [one.value for one in made.taken if one.field in fields]


def lost(made: Drafted) -> list[str]:
    return [row.line.text for row in made.skipped if not row.harmless]


PIPFILE = """
[[source]]
url = "https://index.example.org/whl/cu121"
verify_ssl = true
name = "torch-index"
[packages]
torch = {version = "==2.4.0", index = "torch-index"}
requests = "*"
pandas = "~=2.2"
uvicorn = {extras = ["standard"], version = ">=0.30"}
pywin32 = {version = "*", sys_platform = "== 'win32'"}
mine = {path = ".", editable = true}
[dev-packages]
pytest = "*"
[requires]
python_version = "3.11"
"""


def test_a_pipfile(tmp_path: Path) -> None:
    made = drafted(tmp_path, "Pipfile", PIPFILE)
    assert made.plan is not None
    found = made.plan.resolution
    assert (found.torch, found.cuda, found.python) == ("2.4.0", "12.1", "3.11")
    assert values(made, "pip") == ["requests", "pandas~=2.2", "uvicorn[standard]>=0.30"]
    assert [row.line.text for row in made.skipped if row.elsewhere] == ["pywin32 ; ((sys_platform == 'win32'))"]
    assert "mine from path ." in lost(made)
    assert "pytest" in values(drafted(tmp_path, "Pipfile", PIPFILE, groups=("dev",)), "pip")


SETUP_CFG = """
[metadata]
name = demo
[options]
python_requires = >=3.9,<3.12
install_requires =
    torch==2.1.0  # a comment
    einops>=0.7
    tomli; python_version < "3.11"
[options.extras_require]
fast = ninja; numba
[flake8]
max-line-length = 100
"""


def test_a_setup_cfg(tmp_path: Path) -> None:
    made = drafted(tmp_path, "setup.cfg", SETUP_CFG, extras=("fast",))
    assert made.plan is not None
    assert (made.plan.resolution.torch, made.plan.resolution.python) == ("2.1.0", "3.11")
    assert values(made, "pip") == ["einops>=0.7", "ninja", "numba"]


def test_a_setup_cfg_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\neinops\n")
    made = drafted(tmp_path, "setup.cfg", "[options]\ninstall_requires = file: requirements.txt\n")
    assert (values(made, "torch"), values(made, "requirements")) == (["==2.6.0"], ["requirements.txt"])


SETUP_PY = """
from setuptools import setup, find_packages
VERSION = "1.0"
REQUIRED = ["torch>=2.0,<2.3", "einops"]
EXTRAS = {"dev": ["pytest"], "all": sum([], [])}
setup(
    name="demo", version=VERSION, packages=find_packages(), python_requires=">=3.8",
    install_requires=REQUIRED, extras_require=EXTRAS,
)
"""
BY_FILE = """
import setuptools
def needed():
    with open("requirements.txt") as lines:
        return lines.read().splitlines()
setuptools.setup(name="demo", install_requires=needed())
"""


def test_a_setup_py(tmp_path: Path) -> None:
    made = drafted(tmp_path, "setup.py", SETUP_PY, extras=("dev",))
    assert (values(made, "torch"), values(made, "pip")) == ([">=2.0,<2.3"], ["einops", "pytest"])
    assert "the extra all" in lost(made)


@pytest.mark.parametrize(
    "text",
    [
        BY_FILE,
        "from setuptools import setup\nsetup(install_requires=open('requirements.txt').read().split())\n",
        "from setuptools import setup\nx = [y for y in open('./requirements.txt')]\nsetup(install_requires=x)\n",
    ],
)
def test_a_setup_py_that_reads_a_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\neinops\n")
    assert values(drafted(tmp_path, "setup.py", text), "torch", "requirements") == ["requirements.txt", "==2.6.0"]


@pytest.mark.parametrize(
    "text",
    [
        "from setuptools import setup\nsetup(install_requires=['a'] + compute())\n",
        "from setuptools import setup\nx = ['a']\nx += more()\nsetup(install_requires=x)\n",
        "from setuptools import setup\nsetup(install_requires=[f'a=={version}'])\n",
    ],
)
def test_what_a_setup_py_computes_is_lost_by_name(text: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "setup.py", text)
    assert (values(made, "pip"), lost(made)) == ([], ["install_requires"])


def test_a_setup_py_of_one_line_takes_the_setup_cfg(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text(SETUP_CFG)
    assert values(drafted(tmp_path, "setup.py", "from setuptools import setup\nsetup()\n"), "torch") == ["==2.1.0"]


COG = """
build:
  gpu: true
  system_packages: [ffmpeg]
  python_version: "3.10"
  run:
    - pip install -U pip
    - pip install torch==2.1.2+cu118 torchvision --extra-index-url https://index.example.org/whl/cu118
    - command: pip install xformers==0.0.23.post1
    - git clone https://code.example.org/a.git /a && pip install /a
    - apt-get install -y ninja-build
predict: "predict.py:Predictor"
"""


def test_the_commands_of_cog(tmp_path: Path) -> None:
    made = drafted(tmp_path, "cog.yaml", COG)
    assert made.plan is not None
    assert (made.plan.resolution.torch, made.plan.resolution.cuda) == ("2.1.2", "11.8")
    assert values(made, "pip", "apt") == ["ffmpeg", "ninja-build", "xformers==0.0.23.post1"]
    assert {"git clone https://code.example.org/a.git /a", "/a"} <= {*lost(made)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("poetry.lock", "[[package]]\n", "is a lock of another tool"),
        ("uv.lock", "version = 1\n", "is a lock of another tool"),
        ("conda-lock.yml", "package: []\n", "is a lock of another tool"),
        ("README.txt", "This is a project.\nIt trains things, fast!\n", "no line of README.txt is a requirement"),
        ("setup.cfg", "[flake8]\nmax-line-length = 100\n", r"has no section \[options\]"),
        ("setup.py", "print('hello')\n", r"does not call setup"),
        ("setup.py", "def (:\n", "setup.py:1: not Python code"),
        ("setup.py", "(" * 500 + ")" * 500, "not Python code"),
        ("Pipfile", "[packages\n", "Pipfile is not TOML"),
        ("ruff.toml", "line-length = 100\n", "is not a file that envkit reads"),
        ("train.py", "print(1)\n", "is not a file that envkit reads"),
    ],
)
def test_what_is_not_a_project_file_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        drafted(tmp_path, name, text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpu", "# syntax=docker/dockerfile:1\nFROM python:3.11\nRUN pip install torch==2.6.0\n"),
        ("train.docker", "ARG A=3.11\nFROM python:${A}\nRUN pip install torch==2.6.0\n"),
        ("requirements.in", "torch==2.6.0\n"),
        ("gpu.toml", '[project]\nname = "x"\ndependencies = ["torch==2.6.0"]\n'),
        ("other.toml", '[workspace]\nchannels = ["conda-forge"]\n[dependencies]\npytorch = "2.6.0"\n'),
    ],
)
def test_every_command_knows_a_file_by_its_content(name: str, text: str, tmp_path: Path) -> None:
    assert [value.lstrip("=") for value in values(drafted(tmp_path, name, text), "torch")] == ["2.6.0"]
    assert is_project(str(tmp_path / name))


@pytest.mark.parametrize(("extra", "cuda"), [("cu128", "12.8"), ("cuda-12.6", "12.6"), ("gpu-cu126", "12.6")])
def test_an_extra_without_an_index_names_its_cuda(extra: str, cuda: str, tmp_path: Path) -> None:
    text = (
        f'[project]\nname = "x"\n[project.optional-dependencies]\ncpu = ["torch==2.8.0"]\n{extra} = ["torch==2.8.0"]\n'
    )
    made = drafted(tmp_path, "pyproject.toml", text.replace("cuda-12.6", '"cuda-12.6"'))
    assert made.plan is not None
    assert made.plan.resolution.cuda == cuda
