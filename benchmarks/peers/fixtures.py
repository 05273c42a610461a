"""The files that questions start with, and a stand-in for the machine: an nvidia-smi with a driver and a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent

from benchmarks._torch_index import File
from tests.support.file_images import entry, packed, write_layout
from tests.support.launches import record

GPU, CAPABILITY, DRIVER, CUDA = "NVIDIA TITAN RTX", "7.5", "535.154.05", "12.2"
PACKAGES = {"torch": "2.7.1", "numpy": "2.2.6", "sympy": "1.14.0", "filelock": "3.18.0"}  # of the image file
REQUIREMENTS = {"torch": "2.4.1", "numpy": "1.26.4", "setuptools": "80.9.0"}
WEEKS = {"last-week": 10.0, "today": 12.0}  # milliseconds of a step
_RUNS = 8
_SITE = "opt/env/lib/python3.11/site-packages"
_SMI = """#!{python}
import sys
row = {row!r}
query = [word.partition("=")[2] for word in sys.argv if word.startswith("--query-gpu=")]
if not query:
    print("| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda} |")
else:
    names = query[0].split(",")
    if not any("noheader" in word for word in sys.argv):
        print(", ".join(names))
    bare = any("nounits" in word for word in sys.argv)
    print(", ".join(row.get(name.strip(), "[N/A]").removesuffix(" MiB" if bare else "\\n") for name in names))
"""
_RESERVED = """    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, count: all, capabilities: [gpu]}
"""


def machine(folder: Path, driver: str = DRIVER) -> Path:
    """Write an nvidia-smi for the machine of the questions, or for another driver; return its folder for PATH."""
    row = {"index": "0", "name": GPU, "driver_version": driver, "memory.total": "24576 MiB", "compute_cap": CAPABILITY}
    text = _SMI.format(python=sys.executable, row={**row, "count": "1"}, driver=driver, cuda=CUDA)
    return _script(folder / "nvidia-smi", text).parent


def nothing(_: Path) -> None:
    """Write no files."""


def cpu_torch(folder: Path) -> None:
    """Write an environment .venv whose torch is a build without CUDA; .venv/site links to its packages."""
    site = folder / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    File("cpu", "torch", "2.4.1+cpu", "py3-none-any", None).unpack(site)
    (folder / ".venv" / "site").symlink_to(site)
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    (folder / ".venv" / "bin").mkdir()
    (folder / ".venv" / "bin" / "python").symlink_to(Path(sys.executable).resolve())


def requirements(folder: Path) -> None:
    """Write a project with a requirements.txt that has torch with its CUDA and its index."""
    (folder / "requirements.txt").write_text(
        "--extra-index-url https://download.pytorch.org/whl/cu124\n"
        f"torch=={REQUIREMENTS['torch']}+cu124\nnumpy=={REQUIREMENTS['numpy']}\n"
        f"setuptools=={REQUIREMENTS['setuptools']}\n"
    )
    (folder / "train.py").write_text("import torch\n")


def definition(folder: Path) -> None:
    """Write the same project, with an image definition for envkit, a Dockerfile, and a build file for envd."""
    requirements(folder)
    request = '{torch: "2.4.1", cuda: "12.4", source: pytorch}'
    (folder / "image.yaml").write_text(
        f"schema: envkit.image/1\ntitle: CI\ntemplate: wheels\ncompanions: []\nrequest: {request}\n"
    )
    (folder / "Dockerfile").write_text("FROM python:3.11-slim\nRUN pip install torch==2.4.1\n")
    (folder / "build.envd").write_text(
        'def build():\n    base(dev=True)\n    install.python_packages(name=["torch"])\n'
    )


def slower_records(folder: Path) -> None:
    """Write records of eight runs of last week's image and of today's, whose steps take 20 % longer."""
    for week, milliseconds in WEEKS.items():
        (folder / week).mkdir()
        for number in range(_RUNS):
            value = milliseconds * (1 + 0.002 * (number % 5))  # runs are never exactly equal
            (folder / week / f"{number}.json").write_text(json.dumps(record(value)))


def image_file(folder: Path) -> None:
    """Write an OCI layout with four Python packages in two layers."""
    texts = {
        f"{_SITE}/{name}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n\n"
        for name, version in PACKAGES.items()
    }
    parts = (dict(list(texts.items())[:2]), dict(list(texts.items())[2:]))
    layers = [packed([(entry(name), text.encode()) for name, text in part.items()]) for part in parts]
    write_layout(folder / "image", layers)


def dockerfiles(folder: Path) -> None:
    """Write a wrong pair of files (wheels without CUDA, no GPU for the service) and, in right/, a right pair."""
    (folder / "right").mkdir()
    _dockerfile(folder / "Dockerfile", "cpu")
    _dockerfile(folder / "right" / "Dockerfile", "cu124")
    service = "services:\n  train:\n    image: train:1\n    command: python train.py --device cuda\n"
    (folder / "compose.yml").write_text(service)
    (folder / "right" / "compose.yml").write_text(service + _RESERVED)


def inventory(folder: Path) -> None:
    """Write an inventory with three kinds of machines."""
    (folder / "hosts.csv").write_text(
        dedent("""\
            name,gpu,driver,count
            old,V100,535.104.05,8
            middle,A100,550.54.15,12
            new,B200,580.65.06,2
        """)
    )


def conda_file(folder: Path) -> None:
    """Write an environment.yml with torch for CUDA 12.4."""
    (folder / "environment.yml").write_text(
        dedent("""\
            name: train
            channels: [pytorch, nvidia, conda-forge]
            dependencies:
              - python=3.11
              - pytorch=2.4.1
              - pytorch-cuda=12.4
              - scipy
              - pip
              - pip: [einops]
        """)
    )


def nccl_log(folder: Path) -> None:
    """Write the log of a job on two nodes whose ranks connect through Docker's bridge."""
    (folder / "train.log").write_text(
        dedent("""\
            node1:71:71 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>
            node1:71:71 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>
            node1:71:132 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<41837> failed
            [rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 600 s
        """)
    )


def _dockerfile(path: Path, index: str) -> None:
    path.write_text(
        dedent(f"""\
            FROM nvidia/cuda:12.4.1-base-ubuntu22.04
            RUN pip install --no-cache-dir torch==2.4.1 --index-url https://download.pytorch.org/whl/{index}
            COPY train.py /train.py
            USER 1000
            CMD ["python", "/train.py", "--device", "cuda"]
        """)
    )


def _script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
