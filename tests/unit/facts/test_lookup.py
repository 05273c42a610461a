"""One name, everything that is known of it."""

from __future__ import annotations

import pytest

from envkit.facts.load import load
from envkit.facts.lookup import find, nearest
from envkit.ground.versions import key

FACTS = load()


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("2.7.1", ["releases"]),
        ("12.6", ["toolkits", "compat", "forward", "cuda_images"]),
        ("12.6.3", ["toolkits", "compat", "forward", "cuda_images"]),
        ("8.6", ["gpus"]),
        ("sm_90", ["gpus"]),
        ("RTX 4090", ["gpus"]),
        ("nvidia a100", ["gpus"]),
        ("Tesla V100", ["gpus"]),
        ("v100", ["gpus"]),
        ("12.0", ["toolkits", "compat", "forward", "cuda_images", "gpus"]),
        ("centos7", ["oses"]),
        ("9.17.0", ["cudnns"]),
        ("Miniconda3-py311_26.5.3-1-Linux-x86_64.sh", ["installers"]),
        ("numpy2", ["traps"]),
        ("triton", ["releases"]),
        ("triton 3.3.1", ["releases"]),
        ("setuptools==81.0", ["releases"]),
        ("triton 0.1", []),
        ("3.14", ["pythons"]),
        ("3.14.1", ["pythons"]),
        ("pypi_wheel", ["sources"]),
        ("cf_feedstock@74dd3d46ff0c", ["sources"]),
        ("2.7.9", []),
        ("", []),
        ("sm_", []),
    ],
)
def test_a_name_means_these_tables(name: str, tables: list[str]) -> None:
    assert [entry.table for entry in find(FACTS, name)] == tables


def test_a_release_comes_with_its_builds_traps_and_sources() -> None:
    (entry,) = find(FACTS, "2.7.1")
    assert {build.torch for build in entry.builds} == {"2.7.1"}
    assert {"glibc-2.28", "2.7-cu118-no-blackwell"} <= {trap.id for trap in entry.traps}
    assert "pypi_wheel" in entry.refs
    assert entry.title(entry.rows[0]) == "torch 2.7.1"


def test_one_toolkit_comes_with_the_newest_builds_of_its_minor() -> None:
    entry = find(FACTS, "11.8.0")[0]
    newest = {(build.source, build.platform): build.torch for build in entry.builds}
    assert newest["pytorch", "linux-64"] == "2.7.1"
    assert len(entry.builds) == len(newest)


def test_a_package_is_listed_for_each_platform() -> None:
    """torchcodec 0.17.0 is for both; a list with one row for each release had linux-aarch64 only."""
    (entry,) = find(FACTS, "torchcodec")
    assert [row.platform for row in entry.rows if row.version == "0.17.0"] == ["linux-64", "linux-aarch64"]
    versions = [key(row.version) for row in entry.rows]
    assert versions == sorted(versions, reverse=True)
    (entry,) = find(FACTS, "torchvision")
    assert {row.index for row in entry.rows if row.version == "0.21.0"} == {"pypi"}
    # Only the PyTorch index has it.
    assert {row.index for row in entry.rows if row.version == "0.15.0"} - {"pypi"}


def test_what_torch_pins_names_the_torch() -> None:
    (found,) = find(FACTS, "triton 3.3.1")
    assert [row.torch for row in found.rows] == ["2.7.1"]
    (all_of_them,) = find(FACTS, "triton")
    torches = [row.torch for row in all_of_them.rows]
    assert torches == sorted(torches, key=key, reverse=True)
    assert all(row.triton for row in all_of_them.rows)


@pytest.mark.parametrize(
    ("name", "shown"), [("3.14", True), ("3.14.1", True), ("3.14.2", False), ("torchvision", True)]
)
def test_a_python_shows_the_traps_of_its_patch_releases(name: str, shown: bool) -> None:
    traps = {trap.id for entry in find(FACTS, name) for trap in entry.traps}
    assert ("torchvision-python-3.14.1" in traps) is shown


def test_near_names_are_known_names() -> None:
    assert nearest(FACTS, "RTX 4091")[0] == "RTX 4090"
    assert "2.7.1" in nearest(FACTS, "2.7.9")
    assert nearest(FACTS, "numpy_2")[0] == "numpy2"
    for name in nearest(FACTS, "centos"):
        assert find(FACTS, name)
