"""The Python, the device and the torch that lines of project files ask for in other words than a version of torch."""

from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.ground.errors import ConflictError, UsageError
from envkit.project.choice import DEFAULT, Choice
from envkit.project.definition import Drafted, check_base, draft, load

FACTS = load_facts()
UBUNTU, DEBIAN = "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04", "FROM debian:12-slim"


def drafted(folder: Path, *lines: str, name: str = "Dockerfile", choice: Choice = DEFAULT) -> Drafted:
    (folder / name).write_text("\n".join(lines) + "\n")
    return draft(name, folder, FACTS, choice=choice)


def values(made: Drafted, field: str) -> list[str]:
    return [setting.value for setting in made.taken if setting.field == field]


def lost(made: Drafted) -> dict[str, str]:
    return {row.line.text: row.why for row in made.skipped if not row.harmless}


@pytest.mark.parametrize(
    ("base", "run", "python"),
    [
        (UBUNTU, "apt-get update && apt-get install -y python3-pip git", "3.10"),
        ("FROM ubuntu:24.04", "apt-get install -y python3 python3-venv", "3.12"),
        (DEBIAN, "apt-get install -y --no-install-recommends python-is-python3", "3.11"),
        ("FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu20.04", "apt install -y python3-dev", "3.8"),
        (UBUNTU, "add-apt-repository ppa:deadsnakes/ppa && apt-get install -y python3.12 python3-pip", "3.12"),
        (UBUNTU, "uv venv /venv --python 3.11", "3.11"),
        (UBUNTU, "apt-get install -y python3 && uv venv --python=python3.12 && uv pip install einops", "3.12"),
        ("FROM ubuntu:22.04", "uv python install 3.13", "3.13"),
        ("FROM ubuntu:22.04", "pyenv install 3.9.18 && pyenv global 3.9.18", "3.9"),
        ("FROM ubuntu:22.04", "virtualenv -p /usr/bin/python3.9 /opt/venv", "3.9"),
        ("FROM ubuntu:24.04", "/usr/local/bin/python3.11 -m venv /opt/venv", "3.11"),
    ],
)
def test_the_python_that_a_dockerfile_installs_is_taken(base: str, run: str, python: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, base, f"RUN {run}", "RUN pip install torch")
    assert values(made, "python") == [python]
    assert made.plan is not None
    assert made.plan.resolution.python == python


def test_a_variable_of_uv_names_the_python(tmp_path: Path) -> None:
    made = drafted(tmp_path, UBUNTU, "ENV UV_PYTHON=python3.11", "RUN uv pip install torch")
    assert values(made, "python") == ["3.11"]


@pytest.mark.parametrize(
    "lines",
    [
        ("FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime", "RUN apt-get install -y python3-dev"),
        (UBUNTU, "RUN uv python install 3.11 3.12 && uv pip install torch"),
        (UBUNTU, "RUN apt-get install -y python3 && conda install -y pytorch scipy"),
        ("FROM ubuntu:18.04", "RUN apt-get install -y python3-pip && pip3 install torch"),
    ],
)
def test_a_python_that_is_not_the_images_is_not_taken(lines: tuple[str, ...], tmp_path: Path) -> None:
    assert values(drafted(tmp_path, *lines), "python") == []


def test_the_python_of_the_system_is_in_one_list(tmp_path: Path) -> None:
    made = drafted(tmp_path, UBUNTU, "RUN apt-get install -y python3-pip python3-dev")
    assert values(made, "python") == ["3.10"]
    assert [row.line.text for row in made.skipped] == ["python3-dev"]


def test_a_range_that_allows_the_python_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nrequires-python = ">=3.9"\ndependencies = []\n')
    made = drafted(tmp_path, UBUNTU, "RUN apt-get install -y python3-pip", "COPY . .", "RUN pip install .")
    assert values(made, "python") == ["3.10"]
    assert not any("Python" in text for text in lost(made))


def test_a_range_that_excludes_the_systems_python_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nrequires-python = ">=3.11"\ndependencies = []\n')
    made = drafted(tmp_path, UBUNTU, "RUN apt-get install -y python3-pip", "COPY . .", "RUN pip install .")
    assert values(made, "python") == [">=3.11"]


@pytest.mark.parametrize(
    ("tag", "noted"), [("2.6.0-cuda12.4-cudnn9-runtime", True), ("1.9.0-cuda11.1-cudnn8-devel", True)]
)
def test_an_image_of_pytorch_does_not_say_its_python(tag: str, noted: bool, tmp_path: Path) -> None:
    made = drafted(tmp_path, f"FROM pytorch/pytorch:{tag}", "RUN pip install einops")
    assert any("does not say which Python" in setting.note for setting in made.taken) is noted


def test_a_python_that_is_named_needs_no_note(tmp_path: Path) -> None:
    made = drafted(tmp_path, "FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime", "RUN conda install -y python=3.12")
    assert not any("does not say which Python" in setting.note for setting in made.taken)


@pytest.mark.parametrize(
    ("lines", "python"),
    [
        (("torch==2.10.0", "torchaudio==2.9.1", "audioop-lts==0.2.2 ; python_version >= '3.13'"), "3.14"),
        (("torch==2.6.0", "torchvision==0.15.1", "tqdm ; python_version >= '3.10'"), "3.13"),
        (("torch==2.2.2", "torchaudio==2.6.0", "rich ; python_version >= '3.9'"), "3.12"),
    ],
)
def test_lines_that_contradict_each_other_do_not_decide_the_python(
    lines: tuple[str, ...], python: str, tmp_path: Path
) -> None:
    made = drafted(tmp_path, *lines, name="requirements.txt")
    assert values(made, "python") == [python]
    assert made.conflict is not None
    assert made.conflict.message == f"no build matches --torch {lines[0][5:]} and --with {lines[1]}"


@pytest.mark.parametrize(
    "lines",
    [
        ("FROM rocm/pytorch:rocm6.4_ubuntu24.04_py3.12_pytorch_release_2.4.1", "RUN pip install torch>=2.4 einops"),
        ("ARG BASE=docker.io/rocm/dev-ubuntu-22.04:6.2", "FROM ${BASE}", "RUN pip install torch"),
        ("FROM python:3.11", "RUN pip install torch --index-url https://wheels.example.com/whl/rocm6.2"),
        ("FROM python:3.11", "RUN pip install torch==2.4.1+rocm6.1"),
    ],
)
def test_a_torch_for_amd_is_a_question(lines: tuple[str, ...], tmp_path: Path) -> None:
    made = drafted(tmp_path, *lines)
    with pytest.raises(UsageError, match="is for AMD GPUs, and envkit makes images for NVIDIA GPUs") as caught:
        check_base(made, tmp_path / "Dockerfile")
    assert "--cuda VERSION or --cpu" in (caught.value.hint or "")


@pytest.mark.parametrize("choice", [Choice(cpu=True), Choice(cuda="12.6")])
def test_another_device_than_amds_can_be_chosen(choice: Choice, tmp_path: Path) -> None:
    made = drafted(tmp_path, "FROM rocm/pytorch:latest", "RUN pip install torch", choice=choice)
    check_base(made, tmp_path / "Dockerfile")
    assert made.plan is not None


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("requirements.txt", ("torch==2.10.0.dev20251011+cu130", "torchvision==0.25.0.dev20251011+cu130")),
        ("requirements.txt", ("--pre", "torch==2.9.0.dev20250801+cu126")),
        (
            "environment.yml",
            ("dependencies:", "  - python=3.12", "  - pip:", "    - torch==2.10.0.dev20251011+cu130"),
        ),
    ],
)
def test_a_nightly_build_becomes_a_release_after_it(name: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    made = drafted(tmp_path, *lines, name=name)
    assert made.plan is not None
    assert made.plan.resolution.torch >= "2.1"
    assert made.plan.resolution.cuda == ("12.6" if "cu126" in lines[1] else "13.0")
    assert any("is a nightly build, and the data has releases only" in one.note for one in made.taken)
    assert not any("torch" in text for text in lost(made))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("requirements.txt", ("-i https://download.pytorch.org/whl/cpu", "torch==2.0.1")),
        ("requirements.txt", ("torch==2.2.2+cpu",)),
        ("Dockerfile", ("FROM python:3.9", "RUN pip install torch==2.1.1 --index-url https://x.example.com/whl/cpu")),
    ],
)
def test_a_cpu_build_that_only_wheels_have_is_taken(name: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    made = drafted(tmp_path, *lines, name=name)
    assert made.plan is not None
    assert (made.plan.resolution.cuda, made.plan.resolution.source) == (None, "pytorch")
    assert any("conda-forge has no CPU build" in one.note for one in made.taken)


@pytest.mark.parametrize("base", ["9.2-cudnn7-devel-ubuntu16.04", "9.0-base-ubuntu16.04", "8.0-cudnn6-runtime"])
def test_a_cuda_that_no_torch_has_is_not_exchanged_for_the_newest(base: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, f"FROM nvidia/cuda:{base}", "RUN pip3 install torch torchvision")
    assert isinstance(made.conflict, ConflictError)
    assert "--cuda" in made.conflict.message


@pytest.mark.parametrize(
    ("specs", "cuda"),
    [
        (("cuda-version=12.4", "pytorch=2.1.2", "pytorch-cuda=11.8"), "11.8"),
        (("cuda-version=12.4=h3060b56_3", "python=3.10", "pytorch=1.13.1=py3.10_cuda11.7_cudnn8_0"), "11.7"),
        (("cuda-version=12.6", "pytorch=2.6.0", "scipy"), "12.6"),
    ],
)
def test_the_cuda_of_torch_counts_before_that_of_others(specs: tuple[str, ...], cuda: str, tmp_path: Path) -> None:
    rows = [f"  - {spec}" for spec in specs]
    made = drafted(tmp_path, "channels: [pytorch, conda-forge]", "dependencies:", *rows, name="environment.yml")
    assert made.plan is not None
    assert made.plan.resolution.cuda == cuda
    assert made.plan.resolution.torch in specs[1].split("=") + specs[-1].split("=")


def test_two_versions_of_torch_are_one_conflict(tmp_path: Path) -> None:
    rows = ["channels: [pytorch]", "dependencies:", "  - pytorch=1.13", "  - pip:", "    - torch==2.1.2"]
    made = drafted(tmp_path, *rows, name="environment.yml")
    assert isinstance(made.conflict, ConflictError)
    assert "==1.13.*,==2.1.2" in made.conflict.message


@pytest.mark.parametrize("package", ["cuda-libraries-dev=11.7.1=0", "cuda-cudart-dev=11.7.99=0"])
def test_what_pytorch_cuda_requires_in_an_export_is_no_toolkit(package: str, tmp_path: Path) -> None:
    own = ["python=3.10.13=h1", "openssl=3.0.13=h2", "xz=5.4.6=h5", "zlib=1.2.13=h5", "pytorch=2.0.1=py3.10_cuda11.7"]
    rows = [f"  - {spec}" for spec in (*own, package)]
    made = drafted(tmp_path, "channels: [pytorch]", "dependencies:", *rows, name="environment.yml")
    assert values(made, "flavor") == []
    assert package in lost(made)


def test_hashes_are_not_printed(tmp_path: Path) -> None:
    digest = f"--hash=sha256:{'0' * 64}"
    path = tmp_path / "requirements.txt"
    path.write_text(f"torch==2.6.0\n-e .\ntqdm==4.67.1 ; python_version >= '3.9' \\\n    {digest}\na @ {digest}\n")
    _, notes = load(str(path), FACTS)
    assert any("tqdm==4.67.1" in note for note in notes)
    assert not any("sha256" in note for note in notes)
    assert not any("sha256" in row.line.text for row in draft(path.name, tmp_path, FACTS).skipped)


@pytest.mark.parametrize(
    ("install", "cuda"),
    [
        ('conda install -y -c "nvidia/label/cuda-11.8.0" cuda-toolkit && pip install torch==2.1.2', "11.8"),
        ("conda install -y cuda -c nvidia/label/cuda-12.1.1 && pip install torch==2.3.1", "12.1"),
        (
            "conda install -y cuda -c nvidia/label/cuda-12.4.1 && pip install torch==2.1.0 -i https://x.example.com/cu121",
            "12.1",
        ),
    ],
)
def test_a_label_of_nvidias_channel_names_the_cuda(install: str, cuda: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "FROM ubuntu:22.04", f"RUN conda install -y python=3.10 && {install}")
    assert made.plan is not None
    assert made.plan.resolution.cuda == cuda
    assert made.plan.flavor == "devel"


def test_the_index_of_torch_counts_before_a_label_and_the_base(tmp_path: Path) -> None:
    index = "--index-url https://wheels.example.com/whl/cu121"
    run = f"RUN conda install -y cuda -c nvidia/label/cuda-12.4.1 && pip install torch==2.1.0 {index}"
    made = drafted(tmp_path, "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04", run)
    assert values(made, "cuda") == ["12.1"]


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ("python=>3.11", "python", ">=3.11"),
        ("shapely=>2.0", "conda", "shapely >=2.0"),
        ("pandas=<2", "conda", "pandas <=2"),
    ],
)
def test_an_operator_with_its_signs_exchanged_is_read(spec: str, field: str, value: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "dependencies:", f"  - {spec}", "  - pytorch=2.6", name="environment.yml")
    assert values(made, field) == [value]


@pytest.mark.parametrize(
    ("files", "torch"),
    [
        ({"setup.py": "from setuptools import setup\nsetup(install_requires=['torch==2.6.0'])\n"}, ["==2.6.0"]),
        ({"setup.cfg": "[metadata]\nname = x\n[options]\ninstall_requires =\n    torch==2.5.1\n"}, ["==2.5.1"]),
        ({}, []),
    ],
)
def test_a_pyproject_without_a_project_leaves_it_to_older_files(
    files: dict[str, str], torch: list[str], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    made = drafted(tmp_path, "[build-system]", 'requires = ["setuptools"]', "[tool.ruff]", name="pyproject.toml")
    assert values(made, "torch") == torch


def test_an_extra_with_torchvision_alone_is_not_taken_by_itself(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\ndependencies = ["gpytorch"]\n[project.optional-dependencies]\n'
    made = drafted(tmp_path, f'{text}examples = ["torchvision", "jupyter"]', name="pyproject.toml")
    assert values(made, "pip") == ["gpytorch"]
    assert any("optional" in text for text in lost(made))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"build": {"dockerfile": "Dockerfile"}}', "Dockerfile, the Dockerfile that it is built from"),
        ('// a comment\n{"dockerFile": "../Dockerfile"}', "Dockerfile, the Dockerfile that it is built from"),
        ('{"image": "python:3.11"}', "reads a Dockerfile or a requirements file"),
    ],
)
def test_a_dev_container_is_refused_with_its_dockerfile(text: str, hint: str, tmp_path: Path) -> None:
    folder = tmp_path / ".devcontainer"
    folder.mkdir()
    (folder / "devcontainer.json").write_text(text)
    for place in (folder, tmp_path):
        (place / "Dockerfile").write_text("FROM python:3.11\n")
    with pytest.raises(UsageError, match=r"devcontainer\.json only configures a container") as caught:
        load(str(folder / "devcontainer.json"), FACTS)
    assert (caught.value.hint or "").endswith(hint)


@pytest.mark.parametrize(
    ("pinned", "requires", "torch", "python"),
    [
        ("3.11", ">=3.10", "torch>=2.6", "3.11"),
        ("3.10.13\n3.12\n", ">=3.10", "torch==2.6.0", "3.10"),
        ("cpython-3.12.4\n", ">=3.9", "torch", "3.12"),
        # It is older than the rest of the project.
        ("3.9\n", ">=3.11,<3.12", "torch==2.6.0", "3.11"),
        ("3.14\n", ">=3.10", "torch==2.4.1", "3.12"),
        ("3.9\n", ">=3.9,<3.12", "torch==2.9.1", "3.11"),
        ("pypy3.10\n", ">=3.11,<3.12", "torch==2.6.0", "3.11"),
    ],
)
def test_the_python_that_uv_runs_a_project_with(
    pinned: str, requires: str, torch: str, python: str, tmp_path: Path
) -> None:
    (tmp_path / ".python-version").write_text(pinned)
    project = ("[project]", 'name = "x"', f'requires-python = "{requires}"', f'dependencies = ["{torch}"]')
    made = drafted(tmp_path, *project, name="pyproject.toml")
    assert made.plan is not None
    assert made.plan.resolution.python == python
    assert not any("Python >=" in text for text in lost(made))
    assert [text for text in lost(made) if text in pinned] == (
        [pinned.split(maxsplit=1)[0]] if torch[-5:] in ("2.4.1", "2.9.1") else []
    )
