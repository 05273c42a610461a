"""The readers of a project's files: what each line becomes, and which lines are left with a reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.plan.requirements import Sorted
from envkit.project.conda_files import environment, pixi
from envkit.project.container_files import cog, dockerfile
from envkit.project.toml_files import pyproject

Reader = Callable[[str, Path], Sorted]


def found(tmp_path: Path, reader: Reader, text: str) -> Sorted:
    (tmp_path / "file").write_text(text)
    return reader("file", tmp_path)


def asked(sorted_: Sorted) -> list[tuple[str, str]]:
    return [(one.field, one.value) for one in sorted_.asked]


def conda(spec: str) -> str:
    return f"dependencies:\n  - {spec}\n"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("python=3.10", [("python", "3.10")]),
        ('"python >=3.10,<3.12"', [("python", ">=3.10,<3.12")]),
        ("python=3.10.12", [("python", "3.10.12")]),
        ("pytorch-cuda=12.1", [("cuda", "12.1")]),
        ("cudatoolkit=11.8", [("cuda", "11.8")]),
        ('"cuda-version 12.4.*"', [("cuda", "12.4")]),
        ("pytorch==2.1.2", [("torch", "2.1.2"), ("source", "conda-forge")]),
        ("pytorch=2.1.2=py3.10_cuda12.1_0", [("torch", "2.1.2"), ("cuda", "12.1"), ("source", "conda-forge")]),
        ("pytorch=2.5.1=cuda126_py311", [("torch", "2.5.1"), ("cuda", "12.6"), ("source", "conda-forge")]),
        ("pytorch::pytorch=2.1", [("torch", "2.1"), ("source", "conda-forge")]),
        ("cpuonly", [("cpu", "true")]),
        ("numpy=1.26.4=py310h_0", [("conda", "numpy=1.26.4")]),
        ('"scipy >=1.11"', [("conda", "scipy >=1.11")]),
        ("conda-forge::ffmpeg", [("conda", "ffmpeg")]),
        ("cuda-nvcc", [("flavor", "devel")]),
    ],
)  # fmt: skip
def test_conda_specs(tmp_path: Path, spec: str, wanted: list[tuple[str, str]]) -> None:
    result = found(tmp_path, environment, conda(spec))
    assert asked(result) == wanted
    assert result.left == ()


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        (conda("bioconda::samtools"), "file:2", "packages of the channel bioconda cannot be installed"),
        ("channels:\n  - bioconda\n", "file:2", "only conda-forge is used"),
        ("channels: [defaults]\n", "file:1", "Anaconda's default channels are never used"),
        ("variables:\n  API_KEY: s3cret\n", "file:2", "looks like a secret"),
        ("dependencies:\n  - pip:\n    - -e .\n", "file:3", "an editable install is not locked"),
        ("platforms: [win-64]\n", "file:1", "envkit does not know this key"),
        (conda('"pytorch=nightly"'), "file:2", "nightly is not a version of torch"),
    ],
)
def test_what_an_environment_has_that_is_left(tmp_path: Path, text: str, where: str, why: str) -> None:
    left = found(tmp_path, environment, text).left
    assert [(one.line.where, why in one.why) for one in left] == [(where, True)]


def test_the_value_of_a_refused_variable_is_not_shown(tmp_path: Path) -> None:
    left = found(tmp_path, environment, "variables:\n  API_KEY: s3cret\n").left
    assert [one.line.text for one in left] == ["the variable API_KEY"]


PIXI = """
[workspace]
channels = ["conda-forge", "pytorch"]
platforms = ["linux-64"]
[system-requirements]
cuda = "12"
[dependencies]
python = "3.11.*"
scipy = ">=1.11,<2"
[pypi-dependencies]
einops = ">=0.7"
mine = { path = "." }
[feature.gpu.dependencies]
pytorch-gpu = { version = "2.5.1.*", build = "cuda126*" }
[feature.docs.dependencies]
mkdocs = "*"
[tasks]
train = "python train.py"
"""


def test_pixi_tables(tmp_path: Path) -> None:
    result = found(tmp_path, pixi, PIXI)
    assert asked(result) == [
        ("python", "3.11.*"),
        ("conda", "scipy >=1.11,<2"),
        ("torch", "2.5.1.*"),
        ("cuda", "12.6"),
        ("source", "conda-pytorch"),
    ]
    assert [one.spec for one in result.packages] == ["einops>=0.7"]
    assert {(one.line.where, one.line.text) for one in result.left if not one.harmless} == {
        ("file:12", "git+.#mine"),
        ("file:15", "feature.docs"),
    }


POETRY = """
[tool.poetry]
name = "old"
[tool.poetry.dependencies]
python = "^3.10"
torch = { version = "^2.1", source = "pytorch-cu118" }
tilde = "~1.2"
exact = "1.2.3"
early = "^0.3.1"
star = "2.*"
own = { git = "https://code.example.com/own.git" }
win = { version = "*", markers = "sys_platform == 'win32'" }
[tool.poetry.group.dev.dependencies]
pytest = "^8"
[[tool.poetry.source]]
name = "pytorch-cu118"
url = "https://wheels.example.com/whl/cu118"
"""


def test_poetry_tables(tmp_path: Path) -> None:
    result = found(tmp_path, pyproject, POETRY)
    assert asked(result) == [("python", ">=3.10,<4"), ("torch", ">=2.1,<3"), ("cuda", "11.8")]
    assert [one.spec for one in result.packages] == [
        "tilde>=1.2,<1.3",
        "exact==1.2.3",
        "early>=0.3.1,<0.4",
        "star==2.*",
    ]
    assert [one.line.where for one in result.left if not one.harmless] == ["file:11", "file:13", "file:3"]


EXTRAS = """
[project]
dependencies = ["einops"]
[project.optional-dependencies]
cu118 = ["torch==2.7.1"]
cpu = ["torch==2.7.1"]
[tool.uv.sources]
torch = [{ index = "a", extra = "cu118" }, { index = "b", extra = "cpu" }]
[[tool.uv.index]]
name = "a"
url = "https://wheels.example.com/whl/cu118"
[[tool.uv.index]]
name = "b"
url = "https://wheels.example.com/whl/cpu"
"""


def test_of_extras_with_torch_the_first_is_taken(tmp_path: Path) -> None:
    result = found(tmp_path, pyproject, EXTRAS)
    assert asked(result) == [("torch", "==2.7.1"), ("cuda", "11.8")]
    assert [(one.line.where, one.why) for one in result.left] == [
        ("file:6", "torch is taken from project.optional-dependencies.cu118"),
        ("file:14", "another variant than https://wheels.example.com/whl/cu118, which is taken"),
    ]


def test_cog_without_a_gpu_is_a_cpu_image(tmp_path: Path) -> None:
    result = found(tmp_path, cog, "build:\n  python_version: '3.11'\n")
    assert asked(result)[:2] == [("python", "3.11"), ("cpu", "true")]


def test_cog_names_a_requirements_file(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("torch==2.2.2\neinops\n")
    result = found(tmp_path, cog, "build:\n  gpu: true\n  python_requirements: r.txt\n")
    assert asked(result)[:2] == [("requirements", "r.txt"), ("torch", "==2.2.2")]


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04", [("cuda", "11.8"), ("os", "ubuntu22.04")]),
        ("docker.io/nvidia/cuda:12.4.1-devel-ubi9", [("cuda", "12.4"), ("flavor", "devel"), ("os", "ubi9")]),
        ("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", [("torch", "==2.1.0"), ("cuda", "12.1")]),
        ("python:3.10-slim AS base", [("python", "3.10")]),
    ],
)  # fmt: skip
def test_base_images(tmp_path: Path, image: str, wanted: list[tuple[str, str]]) -> None:
    assert [row for row in asked(found(tmp_path, dockerfile, f"FROM {image}\n")) if row[0] != "source"] == wanted


@pytest.mark.parametrize(
    ("run", "wanted", "packages"),
    [
        (
            "pip install torch==2.1.0+cu118 -f https://wheels.example.com/whl/cu118",
            [("torch", "==2.1.0"), ("cuda", "11.8"), ("cuda", "11.8")],
            [],
        ),
        ("python3 -m pip install --upgrade pip 'einops>=0.7' tqdm", [], ["einops>=0.7", "tqdm"]),
        ("uv pip install --system einops", [], ["einops"]),
        ("A=1 pip3 install --no-cache-dir x==1 && rm -rf /root/.cache", [], ["x==1"]),
        ("apt-get update && apt-get install -y git ffmpeg && apt-get clean", [("apt", "git"), ("apt", "ffmpeg")], []),
        (
            "conda install -y -c pytorch pytorch=2.1 numpy",
            [("torch", "2.1"), ("conda", "numpy"), ("source", "conda-pytorch")],
            [],
        ),
    ],
)  # fmt: skip
def test_run_lines(tmp_path: Path, run: str, wanted: list[tuple[str, str]], packages: list[str]) -> None:
    result = found(tmp_path, dockerfile, f"FROM nvidia/cuda:11.8.0-base-ubuntu22.04\nRUN {run}\n")
    assert asked(result)[2:] == wanted
    assert [one.spec for one in result.packages] == packages
    assert [one for one in result.left if not one.harmless] == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN make install", "an image definition has no shell commands"),
        ("RUN pip install git+https://code.example.com/a.git", "it is a path or URL"),
        ("COPY --from=build /a /b", "files of another stage"),
        ("COPY nosuch /app/", "the file is not beside the Dockerfile"),
        ("ADD https://files.example.com/a.tar /a", "files of another stage, image or address"),
        ("CMD python train.py", "it is in shell form"),
        ("USER root", "is not a numeric uid:gid"),
        ("ENV API_KEY=s3cret", "looks like a secret"),
        ("WORKDIR /root", "is a system folder"),
        ("HEALTHCHECK CMD true", "an image definition has no such instruction"),
        ("FROM example.com/base:1", "only images of nvidia/cuda"),
    ],
)
def test_what_a_dockerfile_has_that_is_left(tmp_path: Path, line: str, why: str) -> None:
    first = "" if line.startswith("FROM") else "FROM python:3.11\n"
    left = [one for one in found(tmp_path, dockerfile, f"{first}{line}\n").left if not one.harmless]
    assert [(one.line.where, why in one.why) for one in left] == [(f"file:{2 if first else 1}", True)]


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (environment, "- a\n", "file: is not an environment"),
        (environment, "a: &x 1\nb: *x\n", "file:1:"),
        (pyproject, "[project\n", "file: is not TOML"),
        (pixi, "= 1\n", "file: is not TOML"),
        (cog, "image: x\n", "file: there is no key `build`"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path, reader: Reader, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found(tmp_path, reader, text)
