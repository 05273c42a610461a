"""`envkit doctor --file`: Dockerfiles and Compose files."""

from pathlib import Path

import pytest

from envkit.doctor.files import diagnose_file
from envkit.doctor.model import Diagnosis
from envkit.facts.load import load
from envkit.ground.errors import UsageError

GOOD = """FROM python:3.12-slim
RUN pip install torch==2.7.1 --index-url https://download.pytorch.org/whl/cu126
"""
GPU = """services:
  train:
    image: train
    shm_size: 8gb
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
"""


def diagnosed(folder: Path, text: str, name: str = "Dockerfile") -> Diagnosis:
    (folder / name).write_text(text)
    return diagnose_file(folder / name, load())


def ids(found: Diagnosis) -> dict[str, str]:
    return {one.id: str(one.severity) for one in found.findings}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("FROM python\nRUN pip install torch==2.7.1\n", {"unpinned-base": "warn"}),
        ("FROM python:3.12-slim\nRUN pip install torch\n", {"unpinned-torch": "warn"}),
        (GOOD.replace("cu126", "cpu"), {"cpu-torch": "warn"}),
        (
            GOOD.replace("python:3.12-slim", "nvidia/cuda:12.6.3-runtime-ubuntu22.04").replace("cu126", "cpu"),
            {"cpu-torch": "error"},
        ),
        (GOOD.replace("python:3.12-slim", "nvidia/cuda:12.4.1-runtime-ubuntu22.04"), {"two-cudas": "warn"}),
        (GOOD.replace("2.7.1", "2.99.0"), {"no-compatible-versions": "error"}),
        (GOOD + "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64\n", {"ld-library-path": "warn"}),
        (GOOD + "ENV NVIDIA_DRIVER_CAPABILITIES=video\n", {"no-compute": "error"}),
    ],
)
def test_what_a_dockerfile_gets_wrong_is_named(text: str, wanted: dict[str, str], tmp_path: Path) -> None:
    found = diagnosed(tmp_path, text)
    assert wanted.items() <= ids(found).items()
    assert found.exit_code == (6 if "error" in ids(found).values() else 0)


SLIM = "FROM python:3.11-slim\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # The base is the one that the build takes.
        ("ARG TAG=latest\nFROM python:${TAG}\nRUN pip install torch==2.7.1\n", "unpinned-base"),
        ("FROM docker.io/pytorch/pytorch\nRUN pip install torch==2.7.1\n", "unpinned-base"),
        # CUDA from every place that the reader knows.
        (
            (
                "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\nENV PIP_EXTRA_INDEX_URL=https://index.example/whl/cu126\n"
                "RUN pip install torch==2.7.1\n"
            ),
            "two-cudas",
        ),
        (
            (
                "FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\n"
                "RUN conda install -y pytorch=2.4.0 pytorch-cuda=12.4 -c pytorch\n"
            ),
            "two-cudas",
        ),
        (SLIM + "ARG PIP_INDEX_URL=https://index.example/whl/cpu\nRUN pip install torch==2.7.1\n", "cpu-torch"),
        (SLIM + "RUN uv pip install --system torch==2.7.1 --torch-backend cpu\n", "cpu-torch"),
        # Tags that NVIDIA does not list.
        ("FROM nvidia/cuda:12.3.0-cudnn8-runtime-ubuntu22.04\nRUN pip install torch==2.4.0\n", "missing-tag"),
        ("FROM nvidia/cuda:12.4.1-cudnn8-devel-ubuntu22.04\nRUN pip install torch==2.4.0\n", "missing-tag"),
        ("ARG V=12.5.0\nFROM nvidia/cuda:${V}-cudnn-devel-ubuntu22.04\nRUN pip install torch==2.4.0\n", "missing-tag"),
        ("FROM nvidia/cuda:12.6.3-base-ubuntu18.04\nRUN pip install torch==2.7.1\n", "missing-tag"),
        (SLIM + "RUN pip install torch>=1.7.1\n", "unquoted-requirement"),
        (SLIM + "RUN pip install torch==2.7.1 numpy<2\n", "unquoted-requirement"),
        # Variables, as for this machine.
        (GOOD + 'ENV CUDA_VISIBLE_DEVICES=""\n', "cuda-visible-devices"),
        (GOOD + "ENV NVIDIA_VISIBLE_DEVICES=void\n", "nvidia-visible-devices"),
        (GOOD + "ENV NVIDIA_VISIBLE_DEVICES=none\n", "nvidia-visible-devices"),
        (GOOD + "ENV CUDA_LAUNCH_BLOCKING=1\n", "cuda-launch-blocking"),
        (GOOD + "ENV PYTORCH_NO_CUDA_MEMORY_CACHING=1\n", "pytorch-no-cuda-memory-caching"),
    ],
)
def test_what_the_reader_of_init_sees_is_diagnosed(text: str, wanted: str, tmp_path: Path) -> None:
    assert wanted in ids(diagnosed(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        # A file without torch has no torch that does not fit.
        'FROM nvidia/cuda:12.2.2-cudnn8-runtime-ubuntu20.04\nRUN pip install "jax[cuda12]==0.4.26"\n',
        # What envkit does not build is no error of the file.
        "FROM nvidia/cuda:11.1.1-cudnn8-devel-ubuntu18.04\nRUN pip install torch==1.10.0\n",
        # The base behind an argument sets NVIDIA_VISIBLE_DEVICES.
        "ARG BASE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime\nFROM ${BASE}\nRUN pip install einops\n",
        "ARG V=12.6.3\nFROM nvidia/cuda:${V}-runtime-ubuntu22.04\nRUN pip install torch==2.7.1\n",
        # A stage that the image is not based on.
        "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04 AS b\n"
        + GOOD
        + "ENV NVIDIA_VISIBLE_DEVICES=all\nCOPY --from=b /x /x\n",
        "FROM python AS tools\n" + GOOD + "ENV NVIDIA_VISIBLE_DEVICES=all\n",
    ],
)
def test_no_false_findings(text: str, tmp_path: Path) -> None:
    assert ids(diagnosed(tmp_path, text)) == {}


def test_no_gpu_variable_is_missed_in_a_cpu_image(tmp_path: Path) -> None:
    text = SLIM + "RUN uv pip install --system torch==2.6.0 --index https://index.example/whl/cpu\n"
    assert ids(diagnosed(tmp_path, text)) == {"cpu-torch": "warn"}


def test_the_fix_names_the_same_image(tmp_path: Path) -> None:
    (only,) = diagnosed(tmp_path, "FROM docker.io/pytorch/pytorch:latest\nRUN pip install torch==2.7.1\n").findings
    assert only.fix == ("FROM docker.io/pytorch/pytorch:TAG@sha256:DIGEST",)


def test_a_missing_tag_names_the_nearest(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, "FROM nvidia/cuda:12.3.0-cudnn8-runtime-ubuntu22.04\nRUN pip install torch==2.4.0\n")
    (missing,) = [one for one in found.findings if one.id == "missing-tag"]
    assert missing.fix == ("FROM nvidia/cuda:12.3.2-cudnn9-runtime-ubuntu22.04",)


def test_files_of_the_context_and_of_any_name_are_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "docker").mkdir()
    (tmp_path / "requirements.txt").write_text("torch\n")
    text = SLIM + "COPY requirements.txt /app/\nRUN pip install -r /app/requirements.txt\n"
    for name in ("docker/Dockerfile", "docker/gpu.dockerfile", "docker/Containerfile", "docker/train"):
        assert "unpinned-torch" in ids(diagnosed(tmp_path, text, name))


def test_nothing_speaks_against_a_good_dockerfile(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, GOOD + "ENV NVIDIA_VISIBLE_DEVICES=all\n")
    assert (ids(found), found.exit_code, found.conclusion) == ({}, 0, "no problems found")


def test_findings_name_their_line(tmp_path: Path) -> None:
    (only,) = diagnosed(tmp_path, GOOD.replace("cu126", "cpu") + "ENV NVIDIA_VISIBLE_DEVICES=all\n").findings
    assert only.evidence[0].line == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (GPU, {}),
        ("services:\n  train:\n    image: train\n    gpus: all\n    ipc: host\n", {}),
        ("services:\n  train:\n    image: train\n    runtime: nvidia\n    shm_size: 1gb\n", {}),
        ("services:\n  train:\n    image: train\n", {"no-gpu-reserved": "error"}),
        (
            "services:\n  train:\n    image: train\n    environment: [NVIDIA_VISIBLE_DEVICES=all]\n",
            {"no-gpu-reserved": "warn"},
        ),
        (GPU.replace("    shm_size: 8gb\n", ""), {"small-shm": "warn"}),
        (GPU.replace("    shm_size: 8gb\n", "").replace("train", "server"), {"small-shm": "info"}),
        (GPU.replace("[{driver", "!override [{driver"), {}),
        (GPU + "    environment: [NVIDIA_VISIBLE_DEVICES=none]\n", {"nvidia-visible-devices": "warn"}),
        (GPU + '    environment: {CUDA_VISIBLE_DEVICES: ""}\n', {"cuda-visible-devices": "warn"}),
        (GPU + "    environment: [NVIDIA_DRIVER_CAPABILITIES=graphics,video]\n", {"no-compute": "error"}),
        (GPU + "    environment: [CUDA_VISIBLE_DEVICES, MODE=x]\n", {}),
        (GPU.replace(", capabilities: [gpu]", ""), {"no-capabilities": "error"}),
        ("x-gpu: &gpu {gpus: all, shm_size: 8gb}\nservices:\n  train:\n    <<: *gpu\n    image: train\n", {}),
        ("x-gpu: &gpu {gpus: all}\nservices:\n  train: {<<: *gpu, image: train}\n", {"small-shm": "warn"}),
        (GPU.replace("count: all", 'count: 1, device_ids: ["0"]'), {"count-and-ids": "error"}),
    ],
)
def test_a_compose_file(text: str, wanted: dict[str, str], tmp_path: Path) -> None:
    assert ids(diagnosed(tmp_path, text, "compose.yaml")) == wanted


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.py", "", "is neither a Dockerfile nor a Compose file"),
        ("compose.yaml", "a: 1\n", "has no services"),
        ("compose.yaml", "services: [\n", "compose.yaml:"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        diagnosed(tmp_path, text, name)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('ENV CUDA_VISIBLE_DEVICES=""', {"cuda-visible-devices": "warn"}),
        ("ENV NVIDIA_VISIBLE_DEVICES=void", {"nvidia-visible-devices": "warn"}),
        ("ENV NVIDIA_VISIBLE_DEVICES=none", {"nvidia-visible-devices": "warn"}),
        ("ENV CUDA_LAUNCH_BLOCKING=1", {"cuda-launch-blocking": "warn"}),
        ("ENV PYTORCH_NO_CUDA_MEMORY_CACHING=1", {"pytorch-no-cuda-memory-caching": "warn"}),
        ("ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs", {"cuda-stubs": "error"}),
        ("ENV NVIDIA_TF32_OVERRIDE=1 TORCHDYNAMO_DISABLE=0", {}),
    ],
)
def test_the_variables_of_an_image_and_of_a_service_are_those_of_one_table(
    line: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    base = "ENV NVIDIA_VISIBLE_DEVICES=all\n"
    assert wanted.items() <= ids(diagnosed(tmp_path, f"{GOOD}{base}{line}\n")).items()
    name, _, value = line.removeprefix("ENV ").partition("=")
    if " " not in value:
        quoted = value.strip('"')
        for block in (f'      {name}: "{quoted}"', f'      - "{name}={quoted}"'):
            found = ids(diagnosed(tmp_path, f"{GPU}    environment:\n{block}\n", "compose.yaml"))
            assert wanted.items() <= found.items()


def test_a_service_without_a_gpu_may_hide_them(tmp_path: Path) -> None:
    text = f"{GPU}  web: {{image: web, environment: [NVIDIA_VISIBLE_DEVICES=void]}}\n"
    assert ids(diagnosed(tmp_path, text, "compose.yaml")) == {}
