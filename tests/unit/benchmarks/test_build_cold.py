"""The sides of the build benchmark: which are run, and the Dockerfile with uv that buildah gets."""

import argparse
from pathlib import Path

import pytest

from benchmarks._buildah import bases, with_uv
from benchmarks.build_cold import ratios, sides

GOLDEN = Path(__file__).parents[2] / "golden" / "files" / "cu126-miniconda-locked-builder" / "classic.Dockerfile"


def test_uv_takes_the_place_of_pip_in_every_step() -> None:
    before = GOLDEN.read_text()
    after = with_uv(before)
    assert "-m pip install" in before
    assert "-m pip install" not in after
    common = "uv pip install --python /opt/env/bin/python --no-cache --link-mode copy --only-binary :all:"
    assert f"{common} --require-hashes --no-deps -r torch.txt;" in after
    assert after.count("uv pip install") == before.count("-m pip install")


def test_uv_is_in_the_image_before_its_first_step_and_nothing_else_changes() -> None:
    before, after = GOLDEN.read_text().splitlines(), with_uv(GOLDEN.read_text()).splitlines()
    at = after.index("COPY uv /usr/local/bin/uv")
    assert after[at + 1].startswith("RUN ")
    assert not any("uv pip" in line for line in after[:at])
    del after[at]
    different = [new for old, new in zip(before, after, strict=True) if old != new]
    assert all("uv pip install" in line for line in different)


def test_a_dockerfile_without_pip_has_no_place_for_uv() -> None:
    with pytest.raises(ValueError, match="no step of this Dockerfile runs pip"):
        with_uv("FROM debian\nRUN true\n")


def test_the_bases_are_those_that_no_stage_makes() -> None:
    text = "FROM a.example.com/x:1 AS build\nFROM b.example.com/y:2 AS other\nFROM build\nFROM a.example.com/x:1\n"
    assert bases(text) == ("a.example.com/x:1", "b.example.com/y:2")


def test_sides() -> None:
    assert sides("buildah,envkit") == ("envkit", "buildah")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown side kaniko; use envkit, docker, buildah"):
        sides("envkit,kaniko")


def test_each_rival_has_its_goal() -> None:
    docker, buildah = ratios({"envkit": 10.0, "docker": 130.0, "buildah": 70.0})
    assert (docker.name, docker.figure, docker.holds) == ("lock to registry, docker", 13.0, True)
    assert (buildah.name, buildah.figure, buildah.holds) == ("lock to registry, buildah", 7.0, False)
    assert [one.name for one in ratios({"envkit": 10.0, "buildah": 70.0})] == ["lock to registry, buildah"]
