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
        ("train.py", "", "is not named like a Dockerfile or a Compose file"),
        ("compose.yaml", "a: 1\n", "has no services"),
        ("compose.yaml", "services: [\n", "compose.yaml:"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        diagnosed(tmp_path, text, name)
