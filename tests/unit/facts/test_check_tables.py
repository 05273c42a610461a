"""Checks of the YAML tables, run on copies that were broken on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.facts import edited
from envkit.facts.check_tables import check_tables
from envkit.ground.errors import UsageError

Break = Callable[[str, str, str], list[str]]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Replace a text in a copy of one table and give the findings that have nothing to do with the snapshot."""
    folder = tmp_path / "data"
    shutil.copytree(edited.DATA, folder)
    monkeypatch.setattr(edited, "DATA", folder)

    def change(name: str, old: str, new: str) -> list[str]:
        path = folder / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        edited.read.cache_clear()
        return [str(finding) for finding in check_tables()]

    yield change
    edited.read.cache_clear()


def test_the_tables_are_sound() -> None:
    assert [str(finding) for finding in check_tables()] == []


def test_a_change_leaves_the_snapshot_behind(broken: Break) -> None:
    assert broken("oses", "'2.36'", "'2.37'") == ["snapshot.json: is out of date; run python -m envkit.facts.snapshot"]


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("oses", "    refs: [debian_releases, distro_glibc]\n", "", "oses rows.0: refs: is missing"),
        ("traps", "    fix: Take wheels", "    fixx: Take wheels", "traps rows.0: fixx: is not a field of this table"),
        ("oses", "[debian_releases, distro_glibc]", "[]", "oses rows.0: refs: the row has no source"),
        ("oses", "debian_releases", "hearsay", "oses rows.0: refs: unknown source 'hearsay'"),
        ("oses", "id: ubuntu22.04", "id: debian12", "oses debian12: the row is given twice"),
        ("cuda_drivers", "confidence: inferred", "confidence: weak",
         "cuda_drivers toolkits.5: confidence: 'weak' is not one of inferred, conflict, unknown"),
        ("torch_cuda_variants", "      linux_x86_64: ['3.6'", "      linux_i686: ['3.6'",
         "torch_cuda_variants 1.8.0 10.1 pytorch: files: the tag 'linux_i686' is not in platform_tags"),
        ("torch_releases", "      nccl: 2.26.2", "      nccl: 2.26.9",
         "torch_cuda_variants 2.7.0 12.6 pytorch: nccl: 2.26.2, but the measured wheel has 2.26.9"),
        ("torch_cuda_variants", "    pypi_default: true\n", "",
         "torch_releases 1.8.0: pypi: 0 variant rows are marked as its default wheel"),
        ("sources", "kind: package index", "sort: package index", "sources pypi_simple: kind: is missing"),
    ],
)  # fmt: skip
def test_a_broken_table_is_found(broken: Break, name: str, old: str, new: str, expected: str) -> None:
    assert expected in broken(name, old, new)


def test_a_table_that_is_not_strict_yaml_is_refused(broken: Break) -> None:
    with pytest.raises(UsageError, match=r"oses\.yaml:\d+:\d+: the key 'glibc' is given twice"):
        broken("oses", "    glibc: '2.36'\n", "    glibc: '2.36'\n    glibc: '2.36'\n")


def test_a_table_without_its_schema_is_refused(broken: Break) -> None:
    with pytest.raises(UsageError, match=r"gpu_arch\.yaml: schema: 1 is missing"):
        broken("gpu_arch", "schema: 1", "schema: 3")
