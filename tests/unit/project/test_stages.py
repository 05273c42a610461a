"""The stages of a Dockerfile: which of them the image has, and which questions they raise."""

from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.project.definition import Drafted, check_base, draft

FACTS = load_facts()
UNUSED = "it is in a stage that the image is not based on"


def drafted(folder: Path, *lines: str) -> Drafted:
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    return draft("Dockerfile", folder, FACTS)


def unused(made: Drafted) -> list[tuple[str, bool]]:
    return [(row.line.where, row.elsewhere) for row in made.skipped if row.why == UNUSED]


@pytest.mark.parametrize(
    "builder",
    [
        "nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04",
        "nvcr.io/nvidia/pytorch:24.10-py3",
        "registry.example.com/cuda-tools:1",
        "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel",
        "tensorflow/tensorflow:2.16.1-gpu",
    ],
)
def test_the_base_of_a_builder_is_no_question(builder: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, f"FROM {builder} AS builder", "FROM python:3.12-slim", "COPY --from=builder /x /x")
    check_base(made, tmp_path / "Dockerfile")
    assert unused(made) == [("Dockerfile:1", False)]


def test_a_stage_that_the_image_has_nothing_of_is_not_lost(tmp_path: Path) -> None:
    made = drafted(
        tmp_path,
        "ARG KIND=cpu",
        "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04 AS base-gpu",
        "FROM python:3.11-slim AS base-cpu",
        "FROM debian:12 AS tools",
        "RUN apt-get install -y git",
        "FROM tools AS more",
        "FROM base-${KIND}",
        "COPY --from=More /usr/bin/git /usr/bin/git",
    )
    assert unused(made) == [
        ("Dockerfile:2", True),
        ("Dockerfile:4", False),
        ("Dockerfile:5", False),
        ("Dockerfile:6", False),
    ]


@pytest.mark.parametrize("flag", ["COPY --from=0 /x /x", "RUN --mount=type=bind,from=a,target=/x cp /x/y /z"])
def test_a_stage_that_the_image_has_files_of_is_lost(flag: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "FROM debian:12 AS a", "FROM python:3.12", flag)
    assert unused(made) == [("Dockerfile:1", False)]


INSTALL = "RUN pip install torch==2.7.1 einops --index-url https://index.example/whl/cu126"
FINAL = "FROM python:3.12-slim"


@pytest.mark.parametrize(
    "lines",
    [
        ["RUN python -m venv /opt/venv", INSTALL, FINAL, "COPY --from=builder /opt/venv /opt/venv"],
        [INSTALL, FINAL, "COPY --from=builder /usr/local/lib/python3.12/site-packages /usr/local/lib/python3.12/"],
        [INSTALL.replace("install", "install --user"), FINAL, "COPY --from=builder /root/.local /root/.local"],
        [INSTALL.replace("install", "install --prefix=/install"), FINAL, "COPY --from=builder /install /usr/local"],
        ["WORKDIR /app", "COPY r.txt ./", "RUN pip install -r r.txt", FINAL, "COPY --from=builder /app /app"],
        [
            "COPY r.txt /r.txt",
            "RUN uv pip install -r /r.txt",
            "FROM builder AS last",
            FINAL,
            "COPY --from=last /app /app",
        ],
        ["RUN echo x", "FROM python:3.12 AS other", INSTALL, FINAL, "COPY --from=other /opt/conda /opt/conda"],
    ],
)
def test_the_packages_of_a_copied_environment_are_taken(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("--index-url https://index.example/whl/cu126\ntorch==2.7.1\neinops\n")
    made = drafted(tmp_path, "FROM nvidia/cuda:12.6.3-devel-ubuntu22.04 AS builder", *lines)
    assert made.plan is not None
    found = made.plan.resolution
    assert (found.torch, found.cuda, found.python) == ("2.7.1", "12.6", "3.12")
    assert "einops" in {spec.partition("=")[0] for spec in made.plan.pip}


@pytest.mark.parametrize(
    "copied", ["COPY --from=builder /src/dist/a.whl /", "COPY --from=builder /usr/bin/tool /usr/bin/tool", "RUN true"]
)
def test_tools_of_a_builder_are_no_packages_of_the_image(copied: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "FROM python:3.12 AS builder", "RUN pip install cmake ninja", FINAL, copied)
    assert [one.value for one in made.taken if one.field == "pip"] == []
