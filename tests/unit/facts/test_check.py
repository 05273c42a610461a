"""Every invariant: the shipped facts keep it, and breaking it is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from envkit.facts.check import check
from envkit.facts.load import load
from envkit.facts.model import Facts, PackageNeeds

FACTS = load()
BUILD = next(b for b in FACTS.builds if (b.torch, b.cuda, b.source) == ("2.10.0", "13.0", "pytorch") and b.ptx)
CPU = next(b for b in FACTS.builds if (b.torch, b.cuda, b.source) == ("2.10.0", None, "pytorch"))
CONDA = next(b for b in FACTS.builds if (b.torch, b.cuda, b.source) == ("2.5.1", "12.4", "conda-pytorch"))


def with_row(table: str, row: Any) -> Facts:
    """The facts with nothing but `row` in a table that no other table needs rows of."""
    changes: dict[str, Any] = {table: (row,)}
    return replace(FACTS, **changes)


def test_the_shipped_facts_are_sound() -> None:
    assert [str(finding) for finding in check(FACTS)] == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (replace(BUILD, refs=()), "builds 2.10.0 13.0 pytorch linux-64: refs: the row has no source"),
        (replace(BUILD, refs=("x",)), "builds 2.10.0 13.0 pytorch linux-64: refs: unknown source 'x'"),
        (replace(BUILD, cuda="13"), None),
        (replace(BUILD, cuda="13.x"), "builds 2.10.0 13.x pytorch linux-64: cuda: '13.x' is not a version"),
        (replace(BUILD, pythons=("3.10", "3.1O")),
         "builds 2.10.0 13.0 pytorch linux-64: pythons: '3.1O' is not a version"),
        (replace(BUILD, triton="three"),
         "builds 2.10.0 13.0 pytorch linux-64: triton: 'three' is not a version constraint"),
        (replace(BUILD, torch="9.9"), "builds 9.9 13.0 pytorch linux-64: torch: there is no release 9.9"),
        (replace(BUILD, source="conda"),
         "builds 2.10.0 13.0 conda linux-64: source: 'conda' is not one of pytorch, pypi, conda-forge, conda-pytorch"),
        (replace(BUILD, platform="win-64"),
         "builds 2.10.0 13.0 pytorch win-64: platform: 'win-64' is not one of linux-64, linux-aarch64"),
        (replace(BUILD, confidence="sure"),
         "builds 2.10.0 13.0 pytorch linux-64: confidence: 'sure' is not one of inferred, conflict, unknown"),
        (replace(BUILD, index="https://wheels.example.com/cu126"),
         "builds 2.10.0 13.0 pytorch linux-64: index: 'https://wheels.example.com/cu126' does not end with /cu130"),
        (replace(BUILD, local_version="+cu126"),
         "builds 2.10.0 13.0 pytorch linux-64: local_version: '+cu126' is not '+cu130'"),
        (replace(BUILD, source="pypi"), "builds 2.10.0 13.0 pypi linux-64: index: pypi has no index URL"),
        (replace(BUILD, channels=("x",)),
         "builds 2.10.0 13.0 pytorch linux-64: channels: conda sources have channels, wheels have none"),
        (replace(CONDA, selector="pytorch-cuda=12.1"),
         "builds 2.5.1 12.4 conda-pytorch linux-64: selector: 'pytorch-cuda=12.1' does not select CUDA 12.4"),
        (replace(CPU, archs=("8.0",)), "builds 2.10.0 cpu pytorch linux-64: archs: a CPU build has no cubins"),
        (replace(BUILD, archs=("6.6",)),
         "builds 2.10.0 13.0 pytorch linux-64: archs: no GPU row has the compute capability 6.6"),
        (replace(BUILD, archs=("7.0",)),
         "builds 2.10.0 13.0 pytorch linux-64: archs: CUDA 13.0 cannot compile for 7.0"),
        (replace(BUILD, archs=("11.0",)), None),
        (replace(BUILD, ptx=("6.6",)),
         "builds 2.10.0 13.0 pytorch linux-64: ptx: no GPU row has the compute capability 6.6"),
    ],
)  # fmt: skip
def test_a_broken_build_is_found(row: Any, expected: str | None) -> None:
    found = [str(finding) for finding in check(with_row("builds", row))]
    assert (expected in found) if expected else not found


def test_the_same_key_twice_is_found() -> None:
    found = check(replace(FACTS, builds=(BUILD, BUILD)))
    assert [str(f) for f in found] == ["builds 2.10.0 13.0 pytorch linux-64: the key is given twice"]


def test_every_cuda_needs_a_toolkit_row() -> None:
    toolkits = tuple(row for row in FACTS.toolkits if not row.toolkit.startswith("13.0"))
    found = [str(f) for f in check(replace(FACTS, builds=(BUILD,), toolkits=toolkits))]
    assert found == ["builds 2.10.0 13.0 pytorch linux-64: cuda: no toolkit row has the driver for CUDA 13.0"]


def test_a_later_toolkit_asks_for_no_older_driver() -> None:
    toolkits = tuple(replace(row, linux_min="500.1") if row.toolkit == "12.4.1" else row for row in FACTS.toolkits)
    assert [str(f) for f in check(replace(FACTS, toolkits=toolkits))] == [
        "toolkits 12.4.1: linux_min: 500.1 is older than the 550.54.14 of 12.4.0"
    ]
    compat = tuple(replace(row, linux_min="400") if row.cuda_major == 13 else row for row in FACTS.compat)
    assert [str(f) for f in check(replace(FACTS, compat=compat))] == [
        "compat 13: linux_min: 400 is older than the 525.60.13 of 12"
    ]


@pytest.mark.parametrize(
    ("table", "changes", "expected"),
    [
        ("oses", {"image": "debian:12"}, "image: 'debian:12' does not begin with a registry"),
        ("oses", {"family": "apk"}, "family: 'apk' is not one of deb, rpm"),
        ("cudnns", {"capabilities": ("all",)}, "capabilities: 'all' is not a compute capability"),
        ("cuda_images", {"tags": ("latest",)}, "tags: 'latest' is not a tag of nvidia/cuda"),
        ("cuda_images", {"tags": ("11.8.0-base-ubuntu22.04",)},
         "tags: '11.8.0-base-ubuntu22.04' belongs to another release"),
        ("installers", {"sha256": "ABC"}, "sha256: 'ABC' is not 64 hex digits"),
        ("installers", {"file": "other.sh"}, "does not end with the file name"),
        ("gpus", {"data_center": ("RTX 9090",)}, "data_center: 'RTX 9090' is not one of its products"),
        ("pythons", {"eol": "2028-10"}, "eol: '2028-10' is not a date such as 2028-10-01"),
        ("pythons", {"eol": "2016-10-01"}, "eol: 2016-10-01 is before 2018-12-24, the end of bug fixes"),
        ("forward", {"branches": ("R535",)}, "branches: 'R535' is not a version"),
        ("builds", {"wheel_size": 0}, "wheel_size: 0 is not a number of bytes"),
        ("builds", {"pulled_size": -1}, "pulled_size: -1 is not a number of bytes"),
        ("traps", {"when": {}}, "when: is empty"),
        ("traps", {"when": {"torhc": "2.0"}}, "when: 'torhc' is not a condition"),
        ("traps", {"when": {"torch": "old"}}, "when: torch: 'old' is not a version constraint"),
        ("traps", {"when": {"source": "pip"}},
         "when: source: 'pip' is not one of pytorch, pypi, conda-forge, conda-pytorch"),
        ("traps", {"severity": "fatal"}, "severity: 'fatal' is not one of error, warn, info"),
    ],
)  # fmt: skip
def test_a_broken_row_is_found(table: str, changes: dict[str, Any], expected: str) -> None:
    row = replace(getattr(FACTS, table)[0], **changes)
    found = [str(finding) for finding in check(with_row(table, row))]
    assert len(found) >= 1
    assert any(expected in line for line in found), found


def test_a_release_without_partners_is_found() -> None:
    releases = {**FACTS.releases, "2.13.0": replace(FACTS.releases["2.13.0"], torchvision=None)}
    assert [str(f) for f in check(replace(FACTS, releases=releases))] == ["releases 2.13.0: torchvision: is missing"]


FLASH = next(row for row in FACTS.package_needs if row.package == "flash-attn")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (FLASH, None),
        (replace(FLASH, package="Flash_Attn"), "package: 'Flash_Attn' is not a normalized name"),
        (replace(FLASH, pages=("https://x.example.com/{cuda}",)), "'https://x.example.com/{cuda}' has the unknown "),
        (replace(FLASH, pages=("https://x.example.com/{torch",)), "pages: 'https://x.example.com/{torch': "),
        (replace(FLASH, indexes=("https://x.example.com/{torch}",)), "has the unknown placeholder 'torch'"),
        (replace(FLASH, programs=("ff mpeg",)), "programs: 'ff mpeg' is not the name of a system package"),
    ],
)
def test_the_needs_of_a_package_are_checked(row: PackageNeeds, expected: str | None) -> None:
    found = [str(finding) for finding in check(with_row("package_needs", row)) if finding.table == "package_needs"]
    assert found == [] if expected is None else len(found) == 1 and expected in found[0]
