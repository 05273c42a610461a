"""Project files of the kinds that people have, each with what it has to become."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.ground.errors import UsageError
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from envkit.project.choice import Choice
from envkit.project.definition import Drafted, check_base, draft, is_project, load
from envkit.project.listing import shown

FACTS = load_facts()


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files, the first of which is read, and what its plan has."""

    files: dict[str, str]
    torch: str = ""
    cuda: str | None = ""  # None: a CPU build
    python: str = ""
    os: str = ""
    pip: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()  # packages
    lost: tuple[str, ...] = ()  # texts of lines
    sources: tuple[str, ...] | None = None  # pages, indexes, and indexes of single packages; None: not compared
    notes: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)
    given: dict[str, str] = field(default_factory=dict)


def environment(*specs: str, channels: str = "conda-forge") -> dict[str, str]:
    rows = "".join(f"  - {spec}\n" for spec in specs)
    return {"environment.yml": f"channels: [{channels}]\ndependencies:\n{rows}"}


def dockerfile(*lines: str) -> dict[str, str]:
    return {"Dockerfile": "\n".join(lines) + "\n"}


def requirements(*lines: str) -> dict[str, str]:
    return {"requirements.txt": "\n".join(lines) + "\n"}


def pyproject(*tables: str) -> dict[str, str]:
    project = '[project]\nname = "x"\ndependencies = ["torch==2.6.0", "einops"]'
    return {"pyproject.toml": "\n".join((project, *tables)) + "\n"}


OLD = 'python_version >= "3.9" and python_version < "3.13"'
BOTH = """
[project]
name = "both"
requires-python = ">=3.10"
dependencies = ["torch==2.9.1", "einops"]
[project.optional-dependencies]
cpu = ["torch==2.9.1"]
{gpu} = ["torch==2.9.1", "triton-extras"]
[tool.uv.sources]
torch = [{{ index = "a", extra = "cpu" }}, {{ index = "b", extra = "{gpu}" }}]
[[tool.uv.index]]
name = "a"
url = "https://wheels.example.com/whl/cpu"
explicit = true
[[tool.uv.index]]
name = "b"
url = "https://wheels.example.com/whl/cu128"
explicit = true
"""
PIXI = """
[workspace]
name = "two"
channels = ["conda-forge"]
platforms = ["linux-64"]
[dependencies]
python = "3.12.*"
[feature.cpu.dependencies]
pytorch-cpu = "*"
onnxruntime = "*"
[feature.gpu.dependencies]
pytorch-gpu = "*"
cuda-version = "12.*"
[feature.gpu.pypi-dependencies]
onnxruntime-gpu = "*"
[environments]
{environments}
[activation.env]
MODE = "fast"
"""

CASES = {
    # Markers: the Python is one that the file's own lines allow.
    "each line has an upper bound": Case(
        files=requirements(f"certifi==2024.8.30 ; {OLD}", f"torch==2.5.1 ; {OLD}", f"tqdm==4.67.1 ; {OLD}"),
        torch="2.5.1",
        python="3.12",
        pip=("certifi==2024.8.30", "tqdm==4.67.1"),
        notes=("Python 3.12 is taken: 3 of the 3 lines",),
    ),
    "a flag decides the Python of markers": Case(
        files=requirements(
            "torch==2.7.1", "einops==0.8.0 ; python_version < '3.13'", "tqdm==4.67.1 ; python_version >= '3.13'"
        ),
        given={"python": "3.11"},
        python="3.11",
        pip=("einops==0.8.0",),
        absent=("tqdm",),
    ),
    "a template decides the Python of markers": Case(
        files=requirements("torch==2.7.1", "einops ; python_version < '3.13'", "tqdm ; python_version >= '3.13'"),
        given={"template": "wheels", "os": "debian12"},
        python="3.11",
        pip=("einops",),
        absent=("tqdm",),
    ),
    "only the line of torch has an upper bound": Case(
        files=requirements("torch==2.6.0 ; python_version < '3.12'", "einops", "rich ; python_version >= '3.12'"),
        torch="2.6.0",
        python="3.11",
        pip=("einops",),
    ),
    "backports do not ask for an old Python": Case(
        files=requirements(
            "torch==2.9.1", "tomli ; python_version < '3.11'", "exceptiongroup ; python_version < '3.11'"
        ),
        torch="2.9.1",
        python="3.13",
        absent=("tomli", "exceptiongroup"),
    ),
    "markers of the processor are for the target": Case(
        files=requirements(
            "torch==2.8.0 ; platform_machine == 'x86_64'",
            "torch==2.9.1 ; platform_machine == 'aarch64'",
            "decord ; platform_machine == 'x86_64'",
            "decord2 ; platform_machine == 'aarch64'",
        ),
        given={"platform": "linux-aarch64"},
        torch="2.9.1",
        pip=("decord2",),
        absent=("decord",),
    ),
    "without a platform the target is linux-64": Case(
        files=requirements(
            "torch==2.8.0 ; platform_machine == 'x86_64'", "torch==2.9.1 ; platform_machine == 'aarch64'"
        ),
        torch="2.8.0",
    ),
    # Patch releases of Python.
    "conda": Case(
        files=environment("python=3.10.8", "pytorch=2.1.0", "pytorch-cuda=11.8", channels="pytorch, conda-forge"),
        torch="2.1.0",
        cuda="11.8",
        python="3.10",
        notes=("Python 3.10 is taken",),
    ),
    "cog": Case(
        files={"cog.yaml": 'build:\n  gpu: true\n  python_version: "3.11.4"\n  python_packages: ["torch==2.6.0"]\n'},
        torch="2.6.0",
        python="3.11",
    ),
    "pixi": Case(
        files={
            "pixi.toml": '[workspace]\nchannels = ["conda-forge"]\n'
            '[dependencies]\npython = "3.10.8"\npytorch = "2.6.*"\n'
        },
        torch="2.6.0",
        python="3.10",
    ),
    "poetry": Case(
        files={"pyproject.toml": '[tool.poetry.dependencies]\npython = "3.10.8"\ntorch = "2.6.0"\n'},
        torch="2.6.0",
        python="3.10",
    ),
    "an exact Python of a project": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\nrequires-python = "==3.11.9"\ndependencies = ["torch==2.6.0"]\n'
        },
        python="3.11",
    ),
    "a range within one minor version": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\nrequires-python = ">=3.10.4,<3.11"\ndependencies = ["torch"]\n'
        },
        python="3.10",
    ),
    "conda create in a Dockerfile": Case(
        files=dockerfile(
            "FROM ubuntu:22.04",
            "RUN conda create -y -n a python=3.9.7 pytorch=1.13.1 pytorch-cuda=11.7 -c pytorch -c nvidia",
        ),
        torch="1.13.1",
        cuda="11.7",
        python="3.9",
        os="ubuntu22.04",
    ),
    # Nothing is called taken over or not needed that is lost.
    "a pinned setuptools": Case(
        files=environment("python=3.9", "setuptools=59.5.0", "pytorch=1.10.1", "cudatoolkit=11.3", channels="pytorch"),
        conda=("setuptools=59.5.0",),
    ),
    "a page of wheels": Case(
        files=requirements("--find-links https://data.example.org/whl/pages.html", "torch==2.6.0", "torch-scatter"),
        torch="2.6.0",
        pip=("torch-scatter",),
        sources=("https://data.example.org/whl/pages.html",),
    ),
    "a page of wheels by its short option": Case(
        files=requirements("torch==2.6.0", "-fhttps://data.example.org/whl/pages.html", "torch-scatter"),
        sources=("https://data.example.org/whl/pages.html",),
    ),
    "a page in a section pip of conda": Case(
        files=environment("python=3.10", "pytorch=2.6.0", "pip", "pip: [-f https://data.example.org/p.html, dgl]"),
        pip=("dgl",),
        sources=("https://data.example.org/p.html",),
    ),
    "a page in a Dockerfile": Case(
        files=dockerfile(
            "FROM python:3.11-slim",
            "RUN pip install torch==2.6.0",
            "RUN pip install torch-scatter -f https://data.example.org/p.html",
        ),
        pip=("torch-scatter",),
        sources=("https://data.example.org/p.html",),
    ),
    "a page in a variable of a command": Case(
        files=dockerfile(
            "FROM python:3.11-slim",
            "RUN PIP_FIND_LINKS='https://a.example.org/p.html https://b.example.org/' pip install torch==2.6.0 dgl",
        ),
        sources=("https://a.example.org/p.html", "https://b.example.org/"),
    ),
    "a page of pixi": Case(
        files={
            "pixi.toml": '[workspace]\nchannels = ["conda-forge"]\n[dependencies]\npytorch = "2.6.*"\n'
            '[pypi-dependencies]\ndgl = "*"\n'
            '[pypi-options]\nfind-links = [{ url = "https://data.example.org/p.html" }]\n'
        },
        pip=("dgl",),
        sources=("https://data.example.org/p.html",),
    ),
    "a page of uv": Case(
        files=pyproject(
            '[tool.uv]\nfind-links = ["https://data.example.org/p.html"]',
            '[[tool.uv.index]]\nname = "flat"\nurl = "https://flat.example.org/list/"\nformat = "flat"',
        ),
        sources=("https://data.example.org/p.html", "https://flat.example.org/list/"),
    ),
    "a page decides torch and CUDA": Case(
        files=requirements("-f https://data.example.org/whl/torch-2.6.0+cu124.html", "torch-scatter", "torch"),
        torch="2.6.0",
        cuda="12.4",
        pip=("torch-scatter",),
        notes=("torch 2.6 is taken: the wheels of https://data.example.org/whl/torch-2.6.0+cu124.html are for it",),
    ),
    "a page decides the CUDA of a pinned torch": Case(
        files=requirements("torch==2.4.1", "-f https://data.example.org/whl/torch-2.4.0+cu118.html", "torch-scatter"),
        torch="2.4.1",
        cuda="11.8",
    ),
    "a page within a range of torch": Case(
        files=requirements("torch>=2.0", "-f https://wheels.example.org/mmcv/dist/cu121/torch2.1.0/index.html", "mmcv"),
        torch="2.1.2",
        cuda="12.1",
    ),
    "a page for the CPU": Case(
        files=requirements("-f https://data.example.org/whl/torch-2.5.0+cpu.html", "torch-sparse"),
        torch="2.5.1",
        cuda=None,
    ),
    "a page that names a CUDA alone": Case(
        files=requirements("torch==2.4.0", "-f https://wheels.example.org/wheels/cu121/repo.html", "dgl"),
        torch="2.4.0",
        cuda="12.1",
    ),
    "a page over the CUDA of a base": Case(
        files=dockerfile(
            "FROM nvidia/cuda:12.1.1-devel-ubuntu22.04",
            "RUN pip install torch==2.4.1 torch-scatter -f https://data.example.org/whl/torch-2.4.0+cu118.html",
        ),
        torch="2.4.1",
        cuda="11.8",
        os="ubuntu22.04",
    ),
    "a page for another torch": Case(
        files=requirements("torch==2.4.0", "-f https://data.example.org/whl/torch-2.6.0+cu124.html", "torch-scatter"),
        torch="2.4.0",
        sources=(),
        pip=("torch-scatter",),
        lost=("-f https://data.example.org/whl/torch-2.6.0+cu124.html",),
    ),
    "a page for another CUDA": Case(
        files=requirements(
            "--extra-index-url https://wheels.example.com/whl/cu118",
            "torch==2.4.0",
            "-f https://data.example.org/whl/torch-2.4.0+cu124.html",
            "torch-scatter",
        ),
        cuda="11.8",
        sources=(),
        lost=("-f https://data.example.org/whl/torch-2.4.0+cu124.html",),
    ),
    "of pages for several torches, the one that fits": Case(
        files=requirements(
            "torch==2.5.1",
            "-f https://data.example.org/whl/torch-2.4.0+cu124.html",
            "-f https://data.example.org/whl/torch-2.5.0+cu124.html",
            "torch-scatter",
        ),
        cuda="12.4",
        sources=("https://data.example.org/whl/torch-2.5.0+cu124.html",),
    ),
    "a folder as a page": Case(
        files=requirements("torch==2.6.0", "--find-links ./wheels", "einops"), lost=("--find-links ./wheels",)
    ),
    # Indexes.
    "an index of a vendor": Case(
        files=requirements("--extra-index-url https://pypi.vendor.example", "torch==2.6.0", "cuml"),
        pip=("cuml",),
        sources=("https://pypi.vendor.example",),
    ),
    "an index instead of the default": Case(
        files=requirements("-i https://packages.example.com/simple", "torch==2.6.0", "einops"),
        sources=("https://packages.example.com/simple",),
    ),
    "an index with a login": Case(
        files=requirements("--extra-index-url https://me:secret@packages.example.com/simple", "torch==2.6.0", "own"),
        sources=("https://packages.example.com/simple",),
        notes=("put it into ~/.netrc",),
    ),
    "an index with a login from variables": Case(
        files=requirements("--extra-index-url https://${USER}:${TOKEN}@packages.example.com/simple", "torch", "own"),
        sources=("https://packages.example.com/simple",),
        notes=("put it into ~/.netrc",),
    ),
    "an index of a command of uv": Case(
        files=dockerfile(
            "FROM python:3.11-slim",
            "RUN uv pip install --system torch==2.6.0 own --index mine=https://packages.example.com/simple",
        ),
        sources=("https://packages.example.com/simple",),
    ),
    "an index for one package": Case(
        files=pyproject(
            '[tool.uv.sources]\neinops = { index = "mine" }',
            '[[tool.uv.index]]\nname = "mine"\nurl = "https://packages.example.com/simple"\nexplicit = true',
        ),
        sources=("einops=https://packages.example.com/simple",),
    ),
    "an index for one package of Poetry": Case(
        files={
            "pyproject.toml": '[tool.poetry.dependencies]\npython = "3.11"\ntorch = "2.6.0"\n'
            'own = { version = "1.0", source = "mine" }\n'
            '[[tool.poetry.source]]\nname = "mine"\nurl = "https://packages.example.com/simple"\n'
            'priority = "explicit"\n'
        },
        sources=("own=https://packages.example.com/simple",),
    ),
    "an index for one package of pixi": Case(
        files={
            "pixi.toml": '[workspace]\nchannels = ["conda-forge"]\n[dependencies]\npytorch = "2.6.*"\n'
            '[pypi-dependencies]\nown = { version = "*", index = "https://packages.example.com/simple" }\n'
        },
        sources=("own=https://packages.example.com/simple",),
    ),
    "an index for torch that names no CUDA": Case(
        files=pyproject(
            '[tool.uv.sources]\ntorch = { index = "mine" }',
            '[[tool.uv.index]]\nname = "mine"\nurl = "https://packages.example.com/simple"\nexplicit = true',
        ),
        lost=("https://packages.example.com/simple",),
    ),
    "an index that no package names": Case(
        files=pyproject(
            '[[tool.uv.index]]\nname = "mine"\nurl = "https://packages.example.com/simple"\nexplicit = true'
        ),
        sources=(),
    ),
    "a mirror of the default index": Case(
        files=requirements("-i https://pypi.example/simple", "torch==2.6.0"), sources=()
    ),
    "a mirror whose path names a CUDA": Case(
        files=requirements("--extra-index-url https://artifacts.example.com/pytorch-cu128/simple", "torch==2.9.1"),
        torch="2.9.1",
        cuda="12.8",
    ),
    "a torchvision that this torch does not have": Case(
        files=environment("python=3.10", "pytorch=2.1.0", "torchvision=0.8.2", "pytorch-cuda=11.8", channels="pytorch"),
        torch="2.1.0",
        lost=("torchvision=0.8.2",),
    ),
    "a torchvision that decides torch": Case(
        files={"pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch>=2.1", "torchvision==0.19.0"]\n'},
        torch="2.4.0",
    ),
    "a triton decides torch": Case(files=requirements("torch>=2.0.1", "triton==2.0.0"), torch="2.0.1"),
    "a triton without a line of torch decides it": Case(files=requirements("einops", "triton==3.2.0"), torch="2.6.0"),
    "a triton of several torches takes the newest": Case(
        files=requirements("triton==3.0.0", "torch"), torch="2.4.1", notes=("torch >=2.4.0,<=2.4.1 is taken",)
    ),
    "a CUDA library decides CUDA": Case(
        files=requirements("torch==2.4.1", "nvidia-cublas-cu12==12.1.3.1"), torch="2.4.1", cuda="12.1"
    ),
    "the CUDA libraries of a freeze decide CUDA and cuDNN": Case(
        files=requirements(
            "torch==2.5.1",
            "nvidia-cuda-runtime-cu12==12.4.127",
            "nvidia-cuda-nvrtc-cu12==12.4.127",
            "nvidia-cudnn-cu12==9.1.0.70",
            "nvidia-nccl-cu12==2.21.5",
            "triton==3.1.0",
        ),
        torch="2.5.1",
        cuda="12.4",
    ),
    "a CUDA library in a pyproject decides CUDA and with it torch": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch", "nvidia-cuda-nvrtc-cu11==11.8.89"]\n'
        },
        torch="2.7.1",
        cuda="11.8",
    ),
    "a constraint on triton decides torch": Case(
        files={"requirements.txt": "torch\n-c limits.txt\n", "limits.txt": "triton==3.3.0\n"}, torch="2.7.0"
    ),
    "a triton that the line of torch excludes decides nothing": Case(
        files=requirements("torch==2.6.0", "triton==3.3.1"), torch="2.6.0"
    ),
    "a range of triton decides nothing": Case(files=requirements("torch==2.6.0", "triton>=2"), torch="2.6.0"),
    "a torchvision beside a conda package of torch decides it": Case(
        files=environment("python=3.10", "pytorch", "torchvision=0.15.2", "pytorch-cuda=11.8", channels="pytorch"),
        torch="2.0.1",
    ),
    "a torchvision in a requirements file decides torch": Case(
        files=requirements("torch>=2.0", "torchvision==0.15.2"), torch="2.0.1"
    ),
    "torchaudio alone decides torch": Case(files=requirements("torchaudio==2.4.0"), torch="2.4.0"),
    "a pair of two releases that fit": Case(
        files=requirements("torch==1.10", "torchvision==0.11.1"), torch="1.10.0", python="3.9"
    ),
    "a build of conda-forge": Case(
        files=environment("python=3.12", "pytorch=2.10=cuda12*", "pytorch-lightning"), torch="2.10.0", cuda="12.9"
    ),
    "a build of conda-forge with a lower bound": Case(
        files=environment("python=3.12", '"pytorch>=2.7.0=cuda12*"'), torch="2.13.0", cuda="12.9"
    ),
    # Nothing is added that the file does not say.
    "an extra of developers": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch>=1.13.1", "einops"]\n'
            '[project.optional-dependencies]\ndev = ["torch==2.7.1", "ruff"]\n'
        },
        pip=("einops",),
        absent=("ruff",),
        lost=("project.optional-dependencies.dev",),
    ),
    "a group of developers": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch==2.6.0"]\n'
            '[dependency-groups]\nbuild = ["torch==2.7.1", "ninja"]\n'
        },
        torch="2.6.0",
        absent=("ninja",),
    ),
    "the group that is named": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch==2.6.0"]\n'
            '[dependency-groups]\ndev = ["ruff"]\ntest = ["pytest"]\n'
        },
        choice=Choice(groups=("test",)),
        pip=("pytest",),
        absent=("ruff",),
    ),
    "an extra that names another of the project": Case(
        files={
            "pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch==2.6.0"]\n'
            '[project.optional-dependencies]\nall = ["x[fast]"]\nfast = ["einops"]\n'
        },
        choice=Choice(extras=("all",)),
        pip=("einops",),
        absent=("x",),
    ),
    "words of a comment": Case(
        files=dockerfile("FROM python:3.11-slim", "RUN pip install torch==2.7.1 einops   # too old in apt"),
        torch="2.7.1",
        pip=("einops",),
        absent=("too", "old", "in", "apt"),
    ),
    "values of options": Case(
        files=dockerfile(
            "FROM python:3.11-slim",
            "RUN pip install --progress-bar off --default-timeout 100 --upgrade-strategy eager torch==2.6.0",
            "RUN uv pip install --system --index-strategy unsafe-best-match --torch-backend cu124 einops",
        ),
        torch="2.6.0",
        cuda="12.4",
        pip=("einops",),
        absent=("off", "100", "eager", "unsafe-best-match", "cu124"),
    ),
    # The right half of a project.
    "the extra for a GPU": Case(files={"pyproject.toml": BOTH.format(gpu="gpu")}, cuda="12.8", pip=("triton-extras",)),
    "the extra with the name of a CUDA": Case(files={"pyproject.toml": BOTH.format(gpu="cu128")}, cuda="12.8"),
    "the extra for a CPU, by its name": Case(
        files={"pyproject.toml": BOTH.format(gpu="gpu")},
        choice=Choice(extras=("cpu",)),
        cuda=None,
        absent=("triton-extras",),
    ),
    "the extra for a CPU": Case(
        files={"pyproject.toml": BOTH.format(gpu="gpu")}, choice=Choice(cpu=True), cuda=None, absent=("triton-extras",)
    ),
    "an environment of pixi": Case(
        files={"pixi.toml": PIXI.format(environments='default = ["gpu"]\ncpu = ["cpu"]')},
        cuda="12.9",
        pip=("onnxruntime-gpu",),
        absent=("onnxruntime",),
        lost=("feature.cpu",),
    ),
    "an environment of pixi that is not the default": Case(
        files={"pixi.toml": PIXI.format(environments='cpu = ["cpu"]\ngpu = ["gpu"]')},
        cuda="12.9",
        absent=("onnxruntime",),
    ),
    "an environment of pixi by its name": Case(
        files={"pixi.toml": PIXI.format(environments='default = ["gpu"]\ncpu = ["cpu"]')},
        choice=Choice(environment="cpu"),
        cuda=None,
        conda=("onnxruntime",),
        absent=("onnxruntime-gpu",),
    ),
    # Dockerfiles.
    "an argument with the name of a CUDA variable": Case(
        files=dockerfile(
            "ARG CUDA_VERSION=12.4.1",
            "FROM nvidia/cuda:${CUDA_VERSION}-runtime-ubuntu22.04",
            "ENV PORT=${PORT:-8080} MODE=prod",
            "RUN DEBIAN_FRONTEND=noninteractive apt-get install -y ffmpeg",
            "RUN pip install torch",
        ),
        torch="2.6.0",
        cuda="12.4",
        os="ubuntu22.04",
    ),
    "a system and a flavor that are given up together": Case(
        files=dockerfile("FROM nvidia/cuda:11.1.1-cudnn8-devel-ubuntu18.04", "RUN pip install torch==1.10.0"),
        torch="1.10.0",
        cuda="11.1",
        os="ubuntu20.04",
    ),
    "a system that is too old": Case(
        files=dockerfile("FROM nvidia/cuda:11.1.1-cudnn8-runtime-ubuntu18.04", "RUN pip install torch==1.10.0"),
        torch="1.10.0",
        cuda="11.1",
    ),
    "a CUDA of a base that torch does not have": Case(
        files=dockerfile("FROM nvidia/cuda:12.2.2-cudnn8-devel-ubuntu20.04", 'RUN pip install "jax[cuda12]"'),
        cuda="12.6",
        notes=("CUDA 12.* is taken",),
    ),
    "the toolkit of NVIDIA's repository": Case(
        files=dockerfile(
            "FROM nvidia/cuda:11.8.0-runtime-ubuntu22.04",
            "RUN apt-get install -y git cuda-minimal-build-11-8 libcusparse-dev-11-8 libcudnn8=8.9.6.50-1+cuda11.8",
            "RUN pip install torch==2.1.2",
        ),
        torch="2.1.2",
        cuda="11.8",
        os="ubuntu22.04",
        lost=("libcusparse-dev-11-8", "libcudnn8=8.9.6.50-1+cuda11.8"),
    ),
    "an entrypoint that a command makes": Case(
        files=dockerfile(
            "FROM python:3.11-slim",
            "RUN pip install torch==2.6.0",
            "RUN printf '#!/bin/sh\\n' > /start.sh && chmod +x /start.sh",
            'ENTRYPOINT ["/start.sh"]',
        ),
        lost=('ENTRYPOINT ["/start.sh"]',),
    ),
    "a branch that cannot be decided": Case(
        files=dockerfile(
            "FROM python:3.11-slim",
            "ARG X",
            "RUN pip install torch==2.6.0",
            'RUN if [ "$X" = true ]; then pip install flash-attn; fi',
        ),
        absent=("flash-attn",),
        lost=("pip install flash-attn",),
    ),
    "a heredoc": Case(
        files=dockerfile(
            "FROM python:3.11-slim", "RUN <<EOF", "apt-get update", "pip install torch==2.6.0 einops", "EOF"
        ),
        torch="2.6.0",
        pip=("einops",),
    ),
    "an index of uv": Case(
        files=dockerfile(
            "FROM python:3.12-slim",
            "RUN uv pip install --system torch==2.6.0 --index https://wheels.example.com/whl/cpu",
        ),
        cuda=None,
    ),
    "pip on Ubuntu": Case(
        files=dockerfile(
            "FROM ubuntu:22.04",
            "RUN apt-get install -y python3 python3-pip",
            "RUN pip3 install torch==2.6.0 --index-url https://wheels.example.com/whl/cu124",
        ),
        torch="2.6.0",
        cuda="12.4",
        os="ubuntu22.04",
    ),
    "an environment that conda reads": Case(
        files={
            **dockerfile(
                "FROM continuumio/miniconda3:24.9.2-0",
                "COPY environment.yml /opt/environment.yml",
                "RUN conda env update -n base -f /opt/environment.yml && conda clean -afy",
            ),
            **environment("python=3.10", "pytorch=2.1.0", "pytorch-cuda=12.1", "scipy", channels="pytorch, nvidia"),
        },
        torch="2.1.0",
        cuda="12.1",
        python="3.10",
        conda=("scipy",),
    ),
    # Bases that decide torch, CUDA, Python and system.
    "an image of NVIDIA": Case(
        files=dockerfile("FROM nvcr.io/nvidia/pytorch:25.03-py3", "RUN pip install einops"),
        torch="2.7.1",
        cuda="12.8",
        python="3.12",
        os="ubuntu24.04",
        pip=("einops",),
        notes=("the image has 2.7.0a0+7c8ec84dab, which became 2.7",),
    ),
    "an image of NVIDIA that is older": Case(
        files=dockerfile("ARG RELEASE=23.10", "FROM nvcr.io/nvidia/pytorch:${RELEASE}-py3", "RUN pip install einops"),
        torch="2.1.2",
        python="3.10",
        os="ubuntu22.04",
    ),
    "an image of NVIDIA by tag and digest": Case(
        files=dockerfile(f"FROM nvcr.io/nvidia/pytorch:24.03-py3@sha256:{'0' * 64}"), torch="2.3.1", python="3.10"
    ),
    "an image of NVIDIA whose torch never was released": Case(
        files=dockerfile("FROM nvcr.io/nvidia/pytorch:22.12-py3"), torch="2.0.1", cuda="11.8", python="3.8"
    ),
    "an image of NVIDIA whose CUDA no torch has": Case(
        files=dockerfile("FROM nvcr.io/nvidia/pytorch:26.02-py3"),
        torch="2.11.0",
        cuda="13.0",
        notes=("CUDA 13.* is taken",),
    ),
    "an image of NVIDIA with another torch over it": Case(
        files=dockerfile("FROM nvcr.io/nvidia/pytorch:24.10-py3", "RUN pip install torch==2.6.0 einops"),
        torch="2.6.0",
        python="3.10",
        os="ubuntu22.04",
        lost=("FROM nvcr.io/nvidia/pytorch:24.10-py3 (torch 2.5.*)",),
    ),
    "a torch over the one of PyTorch's image": Case(
        files=dockerfile("FROM pytorch/pytorch:2.4.0-cuda12.4-cudnn9-devel", "RUN pip install torch==2.6.0"),
        torch="2.6.0",
        cuda="12.4",
        lost=("FROM pytorch/pytorch:2.4.0-cuda12.4-cudnn9-devel (torch 2.4.0)",),
    ),
    "a CUDA of a wheel over the one of the base": Case(
        files=dockerfile(
            "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04",
            "RUN pip install torch==2.6.0 --index-url https://wheels.example.com/whl/cu118",
        ),
        cuda="11.8",
        os="ubuntu22.04",
        lost=("FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04 (cuda 12.4)",),
    ),
    "a lower bound that the torch of the base meets": Case(
        files=dockerfile("FROM pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime", "RUN pip install 'torch>=2.0'"),
        torch="2.4.0",
        cuda="12.4",
    ),
    "a base of NVIDIA without torch": Case(
        files=dockerfile(
            "FROM nvcr.io/nvidia/cuda-dl-base:25.03-cuda12.8-devel-ubuntu24.04", "RUN pip install torch==2.7.1"
        ),
        torch="2.7.1",
        cuda="12.8",
        os="ubuntu24.04",
    ),
    "a CUDA of NVIDIA's own registry": Case(
        files=dockerfile("FROM nvcr.io/nvidia/cuda:12.4.1-cudnn-runtime-rockylinux8", "RUN pip install torch"),
        torch="2.6.0",
        cuda="12.4",
        os="rockylinux8",
    ),
    "a CUDA with TensorRT": Case(
        files=dockerfile("FROM nvidia/cuda:12.8.1-tensorrt-devel-ubuntu24.04", "RUN pip install torch==2.7.1"),
        cuda="12.8",
        os="ubuntu24.04",
    ),
    "a CUDA without a system": Case(
        files=dockerfile("FROM nvidia/cuda:11.1-base", "RUN pip install torch==1.10.0"), torch="1.10.0", cuda="11.1"
    ),
    "a notebook image that names torch": Case(
        files=dockerfile("FROM quay.io/jupyter/pytorch-notebook:cuda12-pytorch-2.6.0", "RUN pip install einops"),
        torch="2.6.0",
        cuda="12.6",
    ),
    "a notebook image, and a line that names torch": Case(
        files=dockerfile(
            "FROM quay.io/jupyter/pytorch-notebook:x86_64-cuda12-python-3.11.8", "RUN pip install torch==2.5.1"
        ),
        torch="2.5.1",
        python="3.11",
    ),
    "a notebook image without CUDA": Case(
        files=dockerfile("FROM jupyter/pytorch-notebook:pytorch-2.5.1", "RUN pip install einops"),
        torch="2.5.1",
        cuda=None,
    ),
    # Poetry.
    "a caret with a suffix": Case(
        files={
            "pyproject.toml": '[tool.poetry.dependencies]\npython = ">=3.9,<3.13"\n'
            'torch = { version = "^2.5.1+cu121" }\ninstrument = "^0.46b0"\n'
        },
        torch="2.5.1",
        cuda="12.1",
        pip=("instrument>=0.46b0,<0.47",),
    ),
}


def drafted(case: Case, folder: Path) -> tuple[Drafted, BuildPlan]:
    """Return the definition of a case, and the plan that `envkit build FILE` with its flags has."""
    for name, text in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    name = next(iter(case.files))
    made = draft(name, folder, FACTS, case.given, case.choice)
    assert made.conflict is None
    definition, _ = load(str(folder / name), FACTS, case.given, case.choice)
    return made, plan_of(definition, case.given, FACTS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_file_becomes_what_it_says(case: Case, tmp_path: Path) -> None:
    made, plan = drafted(case, tmp_path)
    found = plan.resolution
    for key in ("torch", "python", "os"):
        assert getattr(found, key) == getattr(case, key) or not getattr(case, key), key
    assert case.cuda in (found.cuda, "")
    own = (f"{name}={url}" for name, url in plan.package_indexes)
    assert case.sources in (None, (*plan.find_links, *plan.indexes, *own))
    packages = {*plan.pip, *plan.conda}
    assert {*case.pip, *case.conda} <= packages
    names = {spec.partition("=")[0].partition(">")[0].partition("[")[0].strip() for spec in packages}
    assert not names & {*case.absent}
    lost = [row.line.text for row in made.skipped if not row.harmless]
    assert [text for text in case.lost if text not in lost] == []
    notes = "\n".join(one.note for one in made.taken)
    assert [text for text in case.notes if text not in notes] == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_taken_over_is_in_the_plan(case: Case, tmp_path: Path) -> None:
    made, plan = drafted(case, tmp_path)
    packages = {*plan.pip, *plan.conda}
    for key, value, _ in shown(made.taken):
        if key in ("pip", "conda"):
            assert value in packages
        if key in ("torchvision", "torchaudio"):
            assert getattr(plan.resolution, key)


@pytest.mark.parametrize(
    "base",
    [
        "nvcr.io/nvidia/pytorch:99.10-py3",
        "nvcr.io/nvidia/pytorch:25.03-py3-igpu",
        "nvcr.io/nvidia/nemo:24.07",
        "pytorch/pytorch",
        "pytorch/pytorch:latest",
        "nvidia/cuda",
        "quay.io/jupyter/pytorch-notebook:cuda12-2025-03-10",
        "quay.io/jupyter/pytorch-notebook:cuda12-python-3.12",
        "tensorflow/tensorflow:2.16.1-gpu",
    ],
)
def test_a_base_that_decides_torch_and_cannot_be_read_is_a_question(base: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN pip install einops\n")
    with pytest.raises(UsageError, match=r"Dockerfile:1: the image .* has a torch or CUDA of its own") as caught:
        load(str(tmp_path / "Dockerfile"), FACTS)
    assert "--torch VERSION" in (caught.value.hint or "")
    check_base(draft("Dockerfile", tmp_path, FACTS, {"torch": "2.5"}), tmp_path / "Dockerfile")
    check_base(draft("Dockerfile", tmp_path, FACTS, choice=Choice(torch="2.5")), tmp_path / "Dockerfile")


@pytest.mark.parametrize(
    "base",
    [
        "registry.example.com/team/ml-base:3",
        "acme/research-env",
        "train-base:latest",
        "huggingface/transformers-all-latest",
        "rapidsai/base:24.04-py3.11",
        "public.ecr.aws/acme/runtime:1",
        "$BASE",
        "${BASE_IMAGE:?name one}",
    ],
)
def test_a_base_of_which_nothing_is_known_is_a_question(base: str, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"ARG BASE\nFROM {base}\nRUN pip install einops\n")
    with pytest.raises(UsageError, match=r"Dockerfile:2: the image .* may have a torch of its own") as caught:
        load(str(path), FACTS)
    assert caught.value.exit_code == 2
    assert "--torch VERSION" in (caught.value.hint or "")
    assert dict(load(str(path), FACTS, {"torch": "2.5"})[0].request).get("torch") is None
    for line in ("pip install torch", "pip install torchvision==0.21.0", "pip install -r r.txt"):
        (tmp_path / "r.txt").write_text("torch>=2.2\n")
        path.write_text(f"ARG BASE\nFROM {base}\nCOPY r.txt .\nRUN {line}\n")
        load(str(path), FACTS)


@pytest.mark.parametrize(
    "base",
    [
        "alpine:3.20",
        "docker.io/library/node:22-bookworm",
        "fedora:41@sha256:" + "0" * 64,
        "python:slim",
        "continuumio/miniconda3",
        "mambaorg/micromamba:1.5.8",
        "ghcr.io/astral-sh/uv:python3.12-bookworm-slim",
        "public.ecr.aws/docker/library/python:3.12",
        "scratch",
    ],
)
def test_a_base_that_has_no_torch_is_not_a_question(base: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN pip install einops\n")
    load(str(tmp_path / "Dockerfile"), FACTS)


def test_a_cuda_that_no_torch_has_is_a_conflict_if_nothing_names_torch(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM nvidia/cuda:9.2-devel-ubuntu16.04\nRUN pip install scipy\n")
    conflict = draft("Dockerfile", tmp_path, FACTS).conflict
    assert conflict is not None
    assert conflict.message == "no build matches --cuda 9.2"


def context(folder: Path) -> Path:
    (folder / "docker").mkdir()
    (folder / "requirements.txt").write_text("torch==2.6.0\n")
    path = folder / "docker" / "Dockerfile"
    path.write_text("FROM python:3.11\nCOPY requirements.txt /app/\nRUN pip install -r /app/requirements.txt\n")
    return path


def test_files_that_only_the_repository_has_are_read_there(tmp_path: Path) -> None:
    path = context(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "repository")
    (tmp_path / "repository" / ".git").mkdir()
    definition, left = load(str(tmp_path / "repository" / "docker" / "Dockerfile"), FACTS)
    assert dict(definition.request)["torch"] == "==2.6.0"
    wanted = f"the build context is {tmp_path / 'repository'}: only the repository has requirements.txt"
    assert [note.partition(": ")[2] for note in left] == [wanted]
    definition, left = load(str(path), FACTS)
    assert "--context DIR" in left[0]


COMPOSE = """services:
  app:
    build: &build {{ context: {context}, dockerfile: {file} }}
  worker:
    build: *build
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compose.yaml", COMPOSE.format(context=".", file="docker/Dockerfile")),
        ("docker-compose.yml", COMPOSE.format(context=".", file="docker/Dockerfile")),
        ("docker-compose.gpu.yml", COMPOSE.format(context=".", file="./docker/Dockerfile")),
        ("docker/compose.yml", COMPOSE.format(context="..", file="docker/Dockerfile")),
        ("compose.yml", "services: {app: {build: {dockerfile: docker/Dockerfile}}}\n"),
    ],
)
def test_a_compose_file_names_the_build_context(name: str, text: str, tmp_path: Path) -> None:
    path = context(tmp_path)
    # Another file of this name must not be read in its place.
    (path.parent / "requirements.txt").write_text("docker==5.0.0\n")
    (tmp_path / name).write_text(text)
    definition, notes = load(str(path), FACTS)
    assert dict(definition.request)["torch"] == "==2.6.0"
    assert [note for note in notes if "the build context is" in note and f"{Path(name).name}:" in note] != []


@pytest.mark.parametrize(
    "text",
    [
        "services: {app: {build: ./docker}}\n",  # the Dockerfile's own folder
        "services: {app: {build: .}}\n",  # another Dockerfile
        "services: {app: {build: {context: '${ROOT}', dockerfile: docker/Dockerfile}}}\n",
        "services: {app: {build: {context: 'https://code.example.com/a.git', dockerfile: docker/Dockerfile}}}\n",
        "services: {app: {image: a}, other: null}\n",
        "services: [app]\n",
        "a: [\n",
        COMPOSE.format(context=".", file="docker/Dockerfile") + "  other: {build: ./docker}\n",  # two answers
    ],
)
def test_a_compose_file_that_does_not_decide_changes_nothing(text: str, tmp_path: Path) -> None:
    path = context(tmp_path)
    (path.parent / "requirements.txt").write_text("torch==2.5.1\n")
    (tmp_path / "compose.yaml").write_text(text)
    definition, notes = load(str(path), FACTS)
    assert dict(definition.request)["torch"] == "==2.5.1"
    assert [note for note in notes if "the build context is" in note] == []


def test_a_file_that_the_folder_above_has_too_is_noted(tmp_path: Path) -> None:
    path = context(tmp_path)
    (tmp_path / "docker" / "requirements.txt").write_text("docker==5.0.0\n")
    _, notes = load(str(path), FACTS)
    wanted = "the folder above has such a file, too; envkit init --context DIR takes it from there"
    assert [note.partition(": ")[2] for note in notes] == [f"COPY requirements.txt /app/: {wanted}"]


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("conda.yaml", "dependencies: [python=3.11, pytorch=2.6]\n", True),
        ("env-dev.yml", "channels: [conda-forge]\ndependencies: [pytorch]\n", True),
        ("image.yaml", "schema: envkit.image/1\ntitle: x\n", False),
        ("compose.yml", "services: {a: {image: b}}\n", False),
        ("broken.yml", "a: [\n", False),
        ("app.dockerfile", "FROM python\n", True),
        ("Containerfile", "FROM python\n", True),
    ],
)
def test_a_projects_file_is_known_by_its_content(name: str, text: str, is_one: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert is_project(str(tmp_path / name)) is is_one


def test_a_yaml_file_without_dependencies_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "compose.yml").write_text("services: {a: {image: b}}\n")
    with pytest.raises(UsageError, match="is not an environment: it has no dependencies") as caught:
        draft("compose.yml", tmp_path, FACTS)
    assert caught.value.hint == "envkit doctor --file compose.yml"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(extras=("cuda",)), "the project has no extra 'cuda'"),
        (Choice(groups=("dev",)), "the project has no group 'dev'"),
    ],
)
def test_an_extra_or_group_that_is_not_there_is_an_error(choice: Choice, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(BOTH.format(gpu="gpu"))
    with pytest.raises(UsageError, match=message):
        draft("pyproject.toml", tmp_path, FACTS, choice=choice)


def test_an_environment_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pixi.toml").write_text(PIXI.format(environments='cpu = ["cpu"]'))
    with pytest.raises(UsageError, match=r"pixi\.toml has no environment 'gpu'"):
        draft("pixi.toml", tmp_path, FACTS, choice=Choice(environment="gpu"))


def lost(folder: Path, name: str) -> list[tuple[str, str]]:
    return [(row.line.where, row.why) for row in draft(name, folder, FACTS).skipped if not row.harmless]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-e .", "an editable install is not locked"),
        ("-e git+https://code.example.com/a.git#egg=a", "an editable install is not locked"),
        ("git+https://code.example.com/a.git@v1", "it is a path or URL"),
        ("a @ git+https://code.example.com/a.git", "it is a path or URL"),
        ("./dist/a-1.0-py3-none-any.whl", "it is a path or URL"),
        ("a-1.0-py3-none-any.whl", "it is a path or URL"),
        ("https://files.example.com/a-1.0.tar.gz#sha256=00 --hash=sha256:00", "it is a path or URL"),
        ("a==1 ; platform_release >= '5'", "its marker cannot be evaluated"),
    ],
)
def test_what_cannot_be_locked_is_lost_by_name(line: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"torch==2.6.0\n{line}\n")
    assert [(where, why in text) for where, text in lost(tmp_path, "requirements.txt")] == [
        ("requirements.txt:2", True)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "a ; python_version < '3'",
        "a ; sys_platform == 'darwin'",
        "a ; extra == 'dev'",
        "https://files.example.com/a-1.0-cp310-cp310-win_amd64.whl ; sys_platform == 'win32'",
        "a ; python_version < '3.10' and python_version > '3.12'",
    ],
)
def test_a_marker_that_never_holds_is_for_another_system(line: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"torch==2.6.0\n{line}\n")
    made = draft("requirements.txt", tmp_path, FACTS)
    assert [(row.line.text, row.elsewhere) for row in made.skipped] == [(line, True)]


@pytest.mark.parametrize(("first", "second"), [("a.txt", ""), ("b.txt", "a.txt")])
def test_requirements_that_include_themselves_are_one_error(first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"torch\n-r {first}\n")
    (tmp_path / "b.txt").write_text(f"-r {second}\n" if second else "")
    with pytest.raises(UsageError, match="a.txt includes itself"):  # noqa: RUF043 - a dot is any character
        draft("a.txt", tmp_path, FACTS)


def test_extras_that_name_each_other_end(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\ndependencies = ["torch"]\n[project.optional-dependencies]\n'
    (tmp_path / "pyproject.toml").write_text(f'{text}a = ["x[b]", "einops"]\nb = ["x[a]", "tqdm"]\n')
    made = draft("pyproject.toml", tmp_path, FACTS, choice=Choice(extras=("a",)))
    assert [one.value for one in made.taken if one.field == "pip"] == ["tqdm", "einops"]


def test_a_dockerfile_of_windows_is_read(tmp_path: Path) -> None:
    lines = ["# syntax=docker/dockerfile:1", "FROM python:3.11-slim", "RUN pip install torch==2.6.0 \\", "    einops"]
    (tmp_path / "Dockerfile").write_bytes("\r\n".join(lines).encode())
    made = draft("Dockerfile", tmp_path, FACTS)
    assert [one.value for one in made.taken] == ["3.11", "==2.6.0", "einops"]


def test_another_escape_character_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("# escape=`\nFROM python:3.11\nRUN pip install `\n  torch\n")
    with pytest.raises(UsageError, match="Dockerfile:1: the directive escape=` is not supported"):
        draft("Dockerfile", tmp_path, FACTS)


def test_a_pattern_copies_the_files_that_fit(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\nCOPY *.py /srv/\nCOPY *.md /srv/\n")
    made = draft("Dockerfile", tmp_path, FACTS)
    copied = [one.value for one in made.taken if one.field == "copy"]
    assert copied == ['["a.py", "/srv/"]', '["b.py", "/srv/"]']
    assert lost(tmp_path, "Dockerfile") == [("Dockerfile:3", "no file of the folder fits the pattern")]
