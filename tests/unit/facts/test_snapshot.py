"""The snapshot is made from the YAML tables, always the same, and holds all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.facts import edited, snapshot
from envkit.facts.load import load
from envkit.facts.snapshot import digest
from envkit.facts.tables import TABLES, Table, decode, encode


def test_the_committed_snapshot_is_in_step_with_the_tables() -> None:
    assert snapshot.PATH.read_text(encoding="utf-8") == snapshot.text(snapshot.tree()), (
        "run python -m envkit.facts.snapshot"
    )


def test_the_same_tables_give_the_same_bytes() -> None:
    edited.read.cache_clear()
    first = snapshot.text(snapshot.tree())
    edited.read.cache_clear()
    assert snapshot.text(snapshot.tree()) == first
    assert "\r" not in first
    assert first.endswith("}}\n")


@pytest.mark.requirement("R17")
def test_the_digest_is_that_of_the_canonical_tree() -> None:
    content = json.loads(snapshot.PATH.read_text(encoding="utf-8"))
    stated = content.pop("digest")
    del content["checksum"]
    assert stated == digest(content)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the tables and of the snapshot; the other tables are those of envkit."""
    folder = tmp_path / "data"
    shutil.copytree(edited.DATA, folder)
    monkeypatch.setattr(snapshot, "PATH", Path(shutil.copy(snapshot.PATH, tmp_path)))
    with edited.reading_from(folder):
        yield folder


def version(folder: Path) -> tuple[int, int]:
    """The version of the tables and of the snapshot."""
    content = json.loads(snapshot.PATH.read_bytes())
    return snapshot.version_of((folder / "torch_releases.yaml").read_text()), content["version"]


def test_changed_facts_have_a_higher_version(own: Path) -> None:
    before = version(own)[0]
    path = own / "torch_releases.yaml"
    path.write_text(path.read_text().replace("collected: '2026-11-20'", "collected: '2026-11-21'"))
    edited.read.cache_clear()
    assert snapshot.main([]) == 0
    assert version(own) == (before + 1, before + 1)
    assert snapshot.main([]) == 0  # nothing changed since
    assert version(own) == (before + 1, before + 1)


def test_a_version_never_falls(own: Path) -> None:
    before = version(own)[0]
    path = own / "torch_releases.yaml"
    path.write_text(snapshot.with_version(path.read_text(), before - 1))
    edited.read.cache_clear()
    assert snapshot.main([]) == 0
    assert version(own) == (before, before)


def test_a_row_stands_on_a_line_of_its_own() -> None:
    lines = snapshot.PATH.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("[") for line in lines) == sum(len(getattr(load(), table.name)) for table in TABLES)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_survive_the_way_there_and_back(table: Table) -> None:
    rows = getattr(load(), table.name)
    rows = tuple(rows.values()) if isinstance(rows, dict) else rows
    assert decode(table, json.loads(json.dumps(encode(table, rows)))) == rows


def test_all_rows_are_there() -> None:
    assert len(edited.rows("torch_releases")) == 40
    assert len(edited.rows("torch_cuda_variants")) == 356
    assert len(edited.read("conda_installers")["miniconda"]["rows"]) == 243
    assert len(edited.rows("traps")) == 56
    assert len(edited.read("cuda_drivers")["toolkits"]) == 65
    assert len(edited.rows("gpu_arch")) == 20
    assert sum(len(edited.read("docker_tag_list")[name]) for name in ("supported", "unsupported")) == 1422


def test_no_table_names_the_host_of_a_package_registry() -> None:
    hosts = [f"{name}.org" for name in ("pypi", "pythonhosted", "debian", "npmjs")] + ["pypi.nvidia" + ".com"]
    for path in (*edited.DATA.glob("*.yaml"), snapshot.PATH):
        text = path.read_text(encoding="utf-8")
        assert not [host for host in hosts if host in text], path


def test_wrong_arguments_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert snapshot.main(["--nonsense"]) == 2
    assert "usage: python -m envkit.facts.snapshot [--check]" in capsys.readouterr().err
    assert snapshot.main(["--check"]) == 0
    assert capsys.readouterr().out == "snapshot.json is up to date\n"
