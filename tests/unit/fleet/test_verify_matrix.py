"""Verifications as a table, as remarks, as JSON, and as one exit code."""

import json

import pytest

from envkit.fleet.report import most_severe
from envkit.fleet.verify_matrix import SCHEMA, Matrix, cell, hardware, remarks
from envkit.fleet.verify_task import Machine, Verification
from tests.support.records import cpu_record, dead_record, gpu_record

ONE, TWO = Machine(name="one", host="h1", address="tcp://h1:1", gpus=1), Machine(name="two", host="h2")


def verified(image: str, machine: Machine, record: object = None, **more: object) -> Verification:
    tree = record if isinstance(record, dict) else None
    row: dict[str, object] = {"verdict": "ERROR", "exit_code": 9, "duration_s": 1.23456}
    if tree is not None:
        row |= {"verdict": tree["summary"]["verdict"], "exit_code": tree["summary"]["exit_code"]}
    return Verification(image=image, machine=machine.name, record=tree, **row | more)  # type: ignore[arg-type]


def matrix(*verifications: Verification) -> Matrix:
    images = tuple(dict.fromkeys(one.image for one in verifications))
    return Matrix(
        images=images,
        machines=(ONE, TWO),
        verifications=verifications,
        kept=("kept.json", *(None for _ in verifications[1:])),
    )


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((), 0),
        ((0, 0), 0),
        ((0, 5), 5),
        ((5, 9, 0), 9),
        ((6, 9, 124), 6),
        ((10, 6), 10),
        ((0, 77), 77),
        ((130, 10), 130),
    ],
)
def test_the_gravest_exit_code_stands_for_all(codes: tuple[int, ...], expected: int) -> None:
    assert most_severe(codes) == expected


def test_a_table_of_images_and_machines() -> None:
    found = matrix(verified("a", ONE, gpu_record()), verified("a", TWO, cpu_record()), verified("b", ONE))
    head, first, second = found.table()
    assert head[0] == "image"
    assert head[1].startswith("one (NVIDIA H200")
    assert head[2].startswith("two (no GPU, ")
    assert first == ["a", cell(found.verifications[0]), cell(found.verifications[1])]
    assert second == ["b", "ERROR exit 9", "-"]


def test_a_cell_names_the_checks_that_count() -> None:
    tree = gpu_record()
    assert cell(verified("a", ONE, tree)).split()[0] == tree["summary"]["verdict"]
    bad = [row["id"] for row in tree["checks"] if row["gates"] and row["verdict"] in ("FAIL", "ERROR")]
    assert bad
    assert cell(verified("a", ONE, tree)).split()[1 : 1 + len(bad[:3])] == bad[:3]
    # A run that ended badly says nothing of single checks.
    assert cell(verified("a", ONE, dead_record() | {"run": {"trouble": {"code": "x"}}})) == "ERROR"


def test_remarks_say_why_and_what_to_do() -> None:
    lost = verified("a", TWO, error="worker two was lost", hint="dask worker", details=("said so",))
    assert remarks(lost) == ["ERROR, exit code 9: worker two was lost", "said so", "hint: dask worker"]
    lines = remarks(verified("a", ONE, gpu_record()))
    assert any(line.startswith("C13.shm ") for line in lines)


def test_machines_that_say_the_same_say_it_together() -> None:
    found = matrix(*(verified("a", one, error="no disk", hint="make room") for one in (ONE, TWO)), verified("b", ONE))
    assert found.remarks() == [
        "a on one, two: ERROR, exit code 9: no disk",
        "  hint: make room",
        "b on one: ERROR, exit code 9: None",
    ]


def test_a_pass_needs_no_remark() -> None:
    passed = verified(
        "a", ONE, {"summary": {"verdict": "PASS", "exit_code": 0, "reasons": []}, "checks": [], "run": {}}
    )
    assert Matrix(images=("a",), machines=(), verifications=(passed,), kept=(None,)).remarks() == []


def test_the_document_has_everything() -> None:
    record = gpu_record()
    tree = matrix(verified("a", ONE, record, worker="one"), verified("a", TWO, error="x")).to_json("tcp://s:1")
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    assert (tree["schema"], tree["scheduler"], tree["images"]) == (SCHEMA, "tcp://s:1", ["a"])
    assert tree["machines"][1] == {"name": "two", "host": "h2", "address": None, "hardware": None}
    first, second = tree["proofs"]
    assert (first["record"], first["kept"], first["worker"], first["duration_s"]) == (record, "kept.json", "one", 1.235)
    assert (second["record"], second["error"], second["exit_code"]) == (None, "x", 9)
    assert tree["exit_code"] == most_severe([first["exit_code"], 9])


def test_hardware() -> None:
    gpu = {"name": "NVIDIA T4", "driver": "550.1"}
    assert hardware({"env": {"gpu": [gpu, gpu], "host": {}}}) == "2 x NVIDIA T4, driver 550.1"
    assert hardware({"env": {"gpu": [{"name": "NVIDIA T4", "driver": None}], "host": {}}}) == "NVIDIA T4"
    assert hardware({"env": {"gpu": [], "host": {"cpu_model": "EPYC"}}}) == "no GPU, EPYC"
    assert hardware({"env": {"gpu": [], "host": {}}}) == ""
