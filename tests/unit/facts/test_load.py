"""Loading the snapshot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from envkit.facts import load as loading
from envkit.facts.load import load
from envkit.facts.tables import TABLES
from envkit.ground.errors import EnvironmentProblem, IntegrityError
from envkit.ground.installation import again


def test_every_table_is_there() -> None:
    facts = load()
    for table in TABLES:
        rows = getattr(facts, table.name)
        assert rows, table.name
        assert all(type(row) is table.row for row in (rows.values() if isinstance(rows, dict) else rows))
    assert facts.collected == "2026-11-20"
    assert len(facts.digest) == 64
    assert facts.sources["pypi_wheel"]["kind"] == "package index"


def test_values_are_frozen_tuples() -> None:
    build = load().builds[0]
    assert isinstance(build.pythons, tuple)
    assert isinstance(build.refs, tuple)
    with pytest.raises(dataclasses.FrozenInstanceError):
        build.torch = "9.9"  # type: ignore[misc]


def test_two_loads_are_equal() -> None:
    assert load() == load()


def test_the_systems_people_ask_for_are_known() -> None:
    systems = {row.id: row for row in load().oses}
    assert list(systems) == [
        "debian12", "debian13", "ubuntu22.04", "ubuntu24.04", "ubuntu26.04", "ubuntu20.04",
        "rockylinux8", "rockylinux9", "rockylinux10", "almalinux8", "almalinux9", "almalinux10",
        "ubi8", "ubi9", "ubi10", "centosstream9", "centosstream10", "centos8", "centos7",
    ]  # fmt: skip
    glibcs = {"2.17": ["centos7"], "2.31": ["ubuntu20.04"], "2.41": ["debian13"], "2.43": ["ubuntu26.04"]}
    for glibc, names in glibcs.items():
        assert [name for name, row in systems.items() if row.glibc == glibc] == names
    for version, glibc in (("8", "2.28"), ("9", "2.34"), ("10", "2.39")):
        built = [f"{name}{version}" for name in ("rockylinux", "almalinux", "ubi")]
        assert {systems[name].glibc for name in built} == {glibc}
    assert {name for name, row in systems.items() if row.mirrors_ended} == {"centos7", "centos8"}
    assert systems["debian12"].image == "docker.io/library/debian:bookworm-slim"
    assert {row.family for row in systems.values()} == {"deb", "rpm"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ('{"schema": "envkit.facts/0"}', "has schema 'envkit.facts/0', but this envkit needs 'envkit.facts/1'"),
    ],
)
def test_a_broken_installation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, expected: str
) -> None:
    path = tmp_path / "snapshot.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(loading, "SNAPSHOT", path)
    with pytest.raises(EnvironmentProblem) as caught:
        load()
    assert expected in caught.value.message
    assert caught.value.hint == again()


@pytest.mark.requirement("R17")
def test_a_snapshot_that_was_edited_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = loading.SNAPSHOT.read_text().replace('"525.60.13"', '"100.00"', 1)
    (tmp_path / "snapshot.json").write_text(edited)
    monkeypatch.setattr(loading, "SNAPSHOT", tmp_path / "snapshot.json")
    with pytest.raises(IntegrityError, match=r"was modified: its checksum is [0-9a-f]{8}, but it states") as caught:
        load()
    assert "--facts FILE" in str(caught.value.hint)
