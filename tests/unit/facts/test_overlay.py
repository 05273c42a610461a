"""A user's own rows over the facts."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envkit.facts.builds import sort_key
from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.ground.errors import UsageError

OWN = """\
schema: 1
sources:
  our-index: {kind: internal, what: the wheel index of our cluster}
builds:
  - torch: 2.7.1
    cuda: '12.6'
    source: pytorch
    platform: linux-64
    pythons: ['3.10']
    archs: ['9.0']
    index: https://wheels.example.com/cu126
    local_version: +cu126
    glibc: 2.28
    refs: [our-index]
  - {torch: 2.7.1, cuda: '12.9', source: pytorch, platform: linux-64, index: 'https://wheels.example.com/cu129',
     local_version: +cu129, refs: [our-index]}
gpus:
  - capability: '8.0'
    family: Ampere
    products: [A100, A30, A800]
    first_cuda: '11.0'
    amp: {bf16: true}
    min_driver_branch: 450
    refs: [nv_arch_matrix]
"""


def overlay(folder: Path, text: str) -> Facts:
    path = folder / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        overlay(folder, text)
    assert caught.value.hint
    place = f"{folder / 'own.yaml'}: "
    lines = [caught.value.message, *caught.value.details]
    assert all(line.startswith(place) for line in lines)
    return [line.removeprefix(place) for line in lines]


def test_the_same_key_replaces_and_a_new_key_adds(tmp_path: Path) -> None:
    base, facts = load(), overlay(tmp_path, OWN)
    rows = {(b.torch, b.cuda, b.source, b.platform): b for b in facts.builds}
    assert len(facts.builds) == len(base.builds) + 1
    replaced = rows["2.7.1", "12.6", "pytorch", "linux-64"]
    assert replaced.archs == ("9.0",)
    assert replaced.cudnn is None
    assert replaced.advertised is True
    assert rows["2.7.1", "12.9", "pytorch", "linux-64"].pythons is None
    assert list(facts.builds) == sorted(facts.builds, key=sort_key)
    gpu = next(row for row in facts.gpus if row.capability == "8.0")
    assert gpu.products == ("A100", "A30", "A800")
    assert gpu.min_driver_branch == 450
    assert gpu.amp == {"bf16": True}
    assert len(facts.gpus) == len(base.gpus)
    assert facts.sources["our-index"]["kind"] == "internal"


def test_the_digest_covers_the_overlay(tmp_path: Path) -> None:
    base = load().digest
    first = overlay(tmp_path, OWN).digest
    assert overlay(tmp_path, OWN).digest == first
    assert overlay(tmp_path, f"# a remark\n{OWN}").digest == first
    assert overlay(tmp_path, OWN.replace("A800", "A800X")).digest != first
    assert first != base


def test_a_cpu_build_is_written_cpu(tmp_path: Path) -> None:
    text = "schema: 1\nbuilds: [{torch: 2.7.1, cuda: cpu, source: pypi, platform: linux-64, refs: [pypi_simple]}]\n"
    added = [b for b in overlay(tmp_path, text).builds if b.source == "pypi" and b.torch == "2.7.1" and b.cuda is None]
    assert {b.platform for b in added} == {"linux-64", "linux-aarch64"}


def test_all_faults_come_at_once_with_their_place(tmp_path: Path) -> None:
    text = """\
schema: 2
bulds: []
builds:
  - {torch: 2.7.1, cuda: '12,8', source: pytorch, platform: linux-64, refs: []}
  - {torch: 2.7.1, sorce: pypi, platform: linux-64, pythons: '3.10', refs: [pypi_simple]}
  - text
gpus:
  - {capability: '8.0', family: Ampere, first_cuda: '11.0', amp: {bf16: maybe}, min_driver_branch: R450, refs: [x]}
traps: nothing
sources: {mine: {}}
"""
    assert faults(tmp_path, text) == [
        "schema: '2' is not 1; begin the file with 'schema: 1'",
        "bulds: unknown; did you mean 'builds'?",
        "builds[1].sorce: unknown; did you mean 'source'?",
        "builds[1].source: is missing",
        "builds[1].pythons: '3.10' is not a list of strings",
        "builds[2]: is not a table of fields",
        "gpus[0].min_driver_branch: 'R450' is not a whole number",
        "gpus[0].amp: {'bf16': 'maybe'} is not a table of booleans",
        "traps: is not a list of rows",
        "sources.mine: must be a table of strings such as {kind: ..., what: ...}",
    ]


COMPANION = """\
schema: 1
companions:
  - {package: torchvision, version: 0.99.0, index: cu130, platform: linux-64, local_version: +cu130, cuda: '13.0',
     torch_cuda: '13', pythons: ['3.11', '3.12'], torch: ==2.15.0, refs: [pypi_simple]}
"""


def test_a_companion_is_added(tmp_path: Path) -> None:
    added = [row for row in overlay(tmp_path, COMPANION).companions if row.version == "0.99.0"]
    assert [(row.pinned, row.pythons) for row in added] == [("0.99.0+cu130", ("3.11", "3.12"))]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("version: 0.99.0, ", "", "version: is missing"),
        ("0.99.0", "''", "version: '' is not a version"),
        ("0.99.0", "0.99.0+cu130", "version: '0.99.0+cu130' has a local version"),
        ("cuda: '13.0', torch_cuda: '13'", "cuda: '12.6'", "cuda: 12.6 is not that of the file"),
        ("cuda: '13.0', torch_cuda: '13', ", "", "cuda: none is not that of the file, torchvision 0.99.0+cu130"),
        ("torch_cuda: '13'", "torch_cuda: '12'", "torch_cuda: '12' is neither its CUDA 13.0"),
        ("+cu130", "+cu126", "local_version: '+cu126' is not '+cu130'"),
        ("'3.12'", "'3.11'", "pythons: there are two files for Python 3.11"),
        ("==2.15.0", "torch 2.15", "torch: 'torch 2.15' is not a version constraint"),
    ],
)  # fmt: skip
def test_a_companion_that_cannot_be_is_refused(old: str, new: str, fault: str, tmp_path: Path) -> None:
    text = COMPANION.replace("\n     ", " ")
    assert old in text
    assert any(line.startswith(f"companions[0].{fault}") for line in faults(tmp_path, text.replace(old, new)))


def test_two_rows_for_one_file_are_refused(tmp_path: Path) -> None:
    row = COMPANION.partition("companions:\n")[2]
    assert faults(tmp_path, COMPANION + row.replace("'3.11', ", "")) == [
        "companions[1]: has the same key as companions[0]"
    ]


def test_rows_that_are_well_formed_are_checked_against_the_facts(tmp_path: Path) -> None:
    text = """\
schema: 1
builds:
  - {torch: 2.7.1, cuda: '12,8', source: pytorch, platform: linux-64, refs: []}
  - {torch: 9.9.0, cuda: '12.6', source: conda, platform: linux-32, confidence: maybe, refs: [nowhere]}
  - {torch: 2.7.1, cuda: '12.6', source: pytorch, platform: linux-64, index: 'https://wheels.example.com/cu128',
     local_version: +cu126, archs: ['10.0', '6.6'], refs: [pypi_simple]}
toolkits:
  - {toolkit: 12.6.9, linux_min: '100', refs: [pypi_simple]}
"""
    assert faults(tmp_path, text) == [
        "builds[0].refs: the row has no source",
        "builds[0].cuda: '12,8' is not a version",
        "builds[1].refs: unknown source 'nowhere'",
        "builds[1].source: 'conda' is not one of pytorch, pypi, conda-forge, conda-pytorch",
        "builds[1].platform: 'linux-32' is not one of linux-64, linux-aarch64",
        "builds[1].confidence: 'maybe' is not one of inferred, conflict, unknown",
        "builds[1].torch: there is no release 9.9.0",
        "builds[2].index: 'https://wheels.example.com/cu128' does not end with /cu126",
        "builds[2].archs: CUDA 12.6 cannot compile for 10.0",
        "builds[2].archs: no GPU row has the compute capability 6.6",
        "toolkits[0].linux_min: 100 is older than the 560.35.05 of 12.6.3",
    ]


def test_one_key_twice_is_a_fault(tmp_path: Path) -> None:
    row = "{torch: 2.7.1, cuda: cpu, source: pypi, platform: linux-64, refs: [pypi_simple]}"
    assert faults(tmp_path, f"schema: 1\nbuilds: [{row}, {row}]\n") == ["builds[1]: has the same key as builds[0]"]


@pytest.mark.parametrize("text", ["", "[]", "text", "null"])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text) == ["the file must contain tables such as builds: and sources:"]


@pytest.mark.requirement("R11")
@pytest.mark.parametrize(
    "text",
    [
        "root:*:20228:0:99999:7:::\ndaemon:*:20228:0:99999:7:::\n",
        "apiVersion: v1\nusers: [{name: me, user: {token: s3cret}}]\n",
        "default:\n  aws_secret_access_key: s3cret\n",
        "s3cret: 1\n",
        '{"auths": {"registry.example": {"auth": "s3cret"}}}',
        "token: s3cret\nsources: {s3cret: {kind: x}}\nbuilds: [s3cret]\n",
    ],
)
def test_nothing_of_another_file_is_quoted(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text) == ["schema is missing; begin the file with 'schema: 1'"]


def test_long_keys_and_values_are_cut(tmp_path: Path) -> None:
    found = faults(tmp_path, f"schema: {'x' * 500}\n{'k' * 500}: 1\nsources: {{{'s' * 500}: 1}}\n")
    assert all(len(fault) < 300 for fault in found)
    assert len(found) == 3


def two_gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 2 << 30)


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "is a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device"),
        (lambda path: path.symlink_to("/dev/tty"), "is a device"),
        (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "is a socket"),
        (two_gigabytes, "larger than 1048576 bytes"),
        (lambda path: path.write_text("schema: 1\n" + "x" * (1 << 20)), "larger than 1048576 bytes"),
        (lambda path: path.write_text("\n" * 200_000), "more than 100000 lines"),
    ],
)
def test_a_file_that_cannot_be_one_of_rows_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], what: str
) -> None:
    make(tmp_path / "own.yaml")
    with pytest.raises(UsageError, match=what):
        load(tmp_path / "own.yaml")


def test_the_file_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    with pytest.raises(UsageError, match=r"own\.yaml: no such file or directory"):
        load(path)
    path.write_text("schema: 1\nbuilds: &a []\n")
    with pytest.raises(UsageError, match=r"own\.yaml:2:9: the anchor &a is not allowed"):
        load(path)


_SCALARS = st.sampled_from(["2.7.1", "12.6", "pytorch", "linux-64", "x", "", "cpu", True, False, None, "9" * 30])
_VALUES = (
    _SCALARS | st.lists(_SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["a", "bf16"]), _SCALARS, max_size=2)
)
_FIELDS = st.sampled_from(
    ["torch", "cuda", "source", "platform", "refs", "pythons", "archs", "toolkit", "linux_min", "capability", "family",
     "first_cuda", "amp", "id", "when", "title", "effect", "fix", "severity", "nonsense", "cuda_major"]
)  # fmt: skip
_ROWS = st.lists(st.dictionaries(_FIELDS, _VALUES, max_size=8) | _SCALARS, max_size=3)
_TABLES = st.sampled_from(["builds", "toolkits", "gpus", "traps", "compat", "cudnns", "sources", "schema", "other"])


@pytest.mark.requirement("R12")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tree=st.dictionaries(_TABLES, _ROWS | _VALUES, max_size=4))
def test_any_tree_is_taken_or_refused(tmp_path: Path, tree: dict[str, object]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"schema": "1", **tree}), encoding="utf-8")
    try:
        facts = load(path)
    except UsageError as error:
        assert error.message.startswith(str(path))  # noqa: PT017 - either outcome is right
    else:
        assert facts.digest != load().digest


def test_the_overlay_of_the_documentation_works(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "facts.md"
    example = page.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    facts = overlay(tmp_path, example)
    assert "our-index" in facts.sources
    assert any(row.refs == ("our-index",) for row in facts.builds)
