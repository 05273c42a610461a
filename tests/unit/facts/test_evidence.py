import dataclasses
import json
import random
from pathlib import Path

import pytest

from envkit.evidence.read import PARTNERS
from envkit.facts import edited, evidence
from envkit.facts.check import name_of
from envkit.facts.evidence import Evidence, agrees, check_evidence, grade_of, rows_by_name, same_days
from envkit.facts.load import SNAPSHOT, load
from envkit.facts.model import PYPI
from envkit.facts.tables import BY_NAME

PROVED = Evidence(row="2.15.0", field="triton", value="==1", kind="metadata", file="a.whl", sha256="0" * 64)
QUOTED = Evidence(row="r", field="f", value="1", kind="document", quote="It is 1.", reference="x@1", date="2026-01-01")


def test_the_shipped_evidence_agrees_with_the_facts() -> None:
    assert check_evidence(load()) == []


def test_every_release_of_the_facts_has_evidence() -> None:
    proved = {one.row for one in evidence.read("releases")}
    assert proved == set(load().releases)


def test_every_file_of_a_partner_on_the_python_index_is_proved() -> None:
    rows = [row for row in load().companions if row.index == PYPI and row.package in PARTNERS]
    names = {name_of(BY_NAME["companions"], row) for row in rows}
    lines = [line for line in evidence.read("companions") if line.grade == "proved" and line.field == "pythons"]
    # torchvision 0.29.2 has one wheel per platform, for any Python: its file list says nothing about Pythons.
    assert names - {line.row for line in lines} == {
        "torchvision 0.29.2 pypi linux-64", "torchvision 0.29.2 pypi linux-aarch64",
    }  # fmt: skip


def test_every_driver_of_a_toolkit_is_quoted() -> None:
    quoted = {one.row for one in evidence.read("toolkits") if one.grade == "quoted" and one.field == "linux_min"}
    assert quoted == {row.toolkit for row in load().toolkits if row.linux_min is not None}


def test_a_tag_names_its_cuda() -> None:
    assert evidence.faults(dataclasses.replace(QUOTED, value="12.9", quote="torch==2.13.0+cu129")) == []


def test_every_source_names_its_place() -> None:
    """A source without a repository, an address or an index cannot be read again; some ids are the place themselves."""
    places = {"repo", "url", "urls", "of", "what"}
    assert [name for name, row in load().sources.items() if not places & set(row) and "<" not in name] == []


@pytest.mark.parametrize(
    ("one", "grade"),
    [
        (PROVED, "proved"),
        (QUOTED, "quoted"),
        (dataclasses.replace(QUOTED, quote=None), "cited"),
        (dataclasses.replace(PROVED, sha256=None), "cited"),
    ],
)
def test_grades(one: Evidence, grade: str) -> None:
    assert one.grade == grade


def test_two_proofs_of_different_values_are_a_conflict() -> None:
    assert grade_of([PROVED, dataclasses.replace(PROVED, value="==2")], None) == "conflict"


@pytest.mark.parametrize(("confidence", "grade"), [(None, "cited"), ("inferred", "inferred"), ("conflict", "conflict")])
def test_without_evidence_the_confidence_counts(confidence: str | None, grade: str) -> None:
    assert grade_of((), confidence) == grade


@pytest.mark.parametrize(
    ("one", "field"),
    [
        (dataclasses.replace(PROVED, sha256=None), "sha256"),
        (dataclasses.replace(QUOTED, quote=None), "quote"),
        (dataclasses.replace(QUOTED, reference=None), "reference"),
        (dataclasses.replace(QUOTED, value="2"), "quote"),
        (dataclasses.replace(PROVED, kind="hearsay"), "kind"),
    ],
)
def test_evidence_that_is_not_what_its_kind_has_to_be(one: Evidence, field: str) -> None:
    assert field in [name for name, _ in evidence.faults(one)]


def test_a_line_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edited, "DATA", tmp_path)
    one = dataclasses.replace(PROVED, value=("1", "2"))
    (tmp_path / "evidence").mkdir()
    evidence.path_of("releases").write_text(evidence.text_of([one, one]))
    assert evidence.read("releases") == (one,)


@pytest.mark.parametrize(
    ("announced", "uploaded", "same"),
    [("2024-01-29", "2024-01-30", True), ("2022-10-17", "2022-08-05", False), ("2025-10", "2025-10-15", True)],
)
def test_an_announced_day_may_be_a_week_off(announced: str, uploaded: str, same: bool) -> None:
    assert same_days(announced, uploaded) is same


def test_every_mutation_of_a_proved_value_is_caught() -> None:
    """1,000 values with evidence are changed, one at a time."""
    chosen, facts = random.Random(20261122), load()
    rows = {table: rows_by_name(facts, table) for table in ("releases", "builds")}
    proofs = [(table, one) for table in rows for one in evidence.read(table)]
    missed = []
    for _ in range(1000):
        table, one = chosen.choice(proofs)
        row = rows[table][one.row]
        old = getattr(row, one.field)
        new = mutated(old, one.field, chosen)
        if agrees(one, dataclasses.replace(row, **{one.field: new})):
            missed.append((table, one.row, one.field, old, new))
    assert missed == []


def mutated(old: object, field: str, chosen: random.Random) -> object:
    """Another value of the same type."""
    if field == "released":
        return f"{int(str(old)[:4]) + 1}{str(old)[4:]}" if old else "2001-01-01"
    if isinstance(old, tuple):
        left = tuple(one for one in old if one != chosen.choice(old)) if old else ()
        return left if left != old and chosen.random() < 0.5 else (*old, "99.9")
    if field.endswith("_pythons"):
        return ("2.7",)
    return f"{old}9" if old else "9.9"


def test_evidence_is_no_part_of_the_snapshot() -> None:
    assert "evidence" not in json.loads(SNAPSHOT.read_text())["tables"]
