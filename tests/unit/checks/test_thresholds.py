from __future__ import annotations

import json
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.checks.catalog import catalog, judges
from envkit.ground.errors import IntegrityError, UsageError

TABLE = thresholds.load()
HEAD = "schema: envkit.thresholds/1\nlinks:\n  generations:\n    3: {gt_per_s: 8.0, payload: 0.984615}\nrules:\n"
ROW = "  C05.x:\n    applies_to: [C05.fp32]\n    type: band\n    gates: true\n    unit: '1'\n"
REST = "    values: {low: 1.0}\n    source: [somewhere]\n"
FLOORS = ("pass", "fail_below", "warn_below", "floor")


@pytest.mark.parametrize(
    ("generation", "width", "limit"),
    [(3, 8, 7.88), (3, 16, 15.75), (4, 16, 31.5), (5, 16, 63.0), (1, 16, 4.0), (6, 16, 121.0)],
)
def test_link_limits_follow_from_transfers_and_line_code(generation: int, width: int, limit: float) -> None:
    assert TABLE.link_limit(generation, width) == pytest.approx(limit, rel=0.001)


@pytest.mark.parametrize(("generation", "width"), [(9, 16), (0, 16), (4, 0)])
def test_an_unknown_link_has_no_limit(generation: int, width: int) -> None:
    assert TABLE.link_limit(generation, width) is None


def test_every_floor_lies_between_a_third_of_its_reference_and_the_reference() -> None:
    checked = 0
    for row in TABLE.rows.values():
        if row.reference is None:
            continue
        for key in FLOORS:
            if key in row.values:
                assert 0.3 * row.reference <= row.number(key) <= row.reference, row.name
                checked += 1
    assert checked >= 5


@pytest.mark.parametrize(
    "name", [name for name, row in TABLE.rows.items() if row.type in ("min_frac_of_limit", "min_ratio")]
)
def test_every_floor_has_a_reference_and_its_lines_are_in_order(name: str) -> None:
    row = TABLE.row(name)
    if "fail_below" in row.values or "warn_below" in row.values:
        assert row.reference is not None
    order = [row.number(key) for key in ("fail_below", "pass", "error_above") if key in row.values]
    assert order == sorted(order)


def test_every_row_applies_to_a_check_that_exists_and_has_a_judge() -> None:
    ids = {entry.id for entry in catalog()}
    for row in TABLE.rows.values():
        for wanted in row.applies_to:
            assert wanted.partition(".")[0] in ids & set(judges()), row.name


def test_every_check_has_a_judge_and_every_judge_a_check() -> None:
    assert set(judges()) == {entry.id for entry in catalog()}


def test_a_row_that_matches_nothing_its_check_reported_is_named() -> None:
    ids = [one for row in TABLE.rows.values() for one in row.applies_to]
    assert TABLE.unmatched(ids) == ()
    assert TABLE.unmatched(["C13.shm_of_another_name"]) == ("C13.headroom",)


@pytest.mark.parametrize("ids", [[], ["C13"], ["C10", "C13"]])
def test_a_check_that_was_skipped_or_left_out_says_nothing_of_its_rows(ids: list[str]) -> None:
    assert TABLE.unmatched(ids) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: other\n", "schema is not envkit.thresholds/1"),
        (HEAD + "  C05.x: 1\n", r"rules.C05.x: not a mapping"),
        (HEAD + ROW + "    values: {low: 1.0}\n", r"rules.C05.x.source: missing"),
        (HEAD + ROW + REST + "    sorce: [x]\n", r"rules.C05.x.sorce: unknown key"),
        (HEAD + ROW.replace("band", "lambda") + REST, "'lambda' is not one of"),
        (HEAD + ROW.replace("[C05.fp32]", "[]") + REST, "applies_to: lists no observation"),
        (HEAD + ROW.replace("gates: true", "gates: maybe") + REST, "gates: must be true or false"),
        (HEAD + ROW.replace("    unit: '1'\n", "") + REST, "unit: missing or not text"),
        (HEAD.replace("8.0", "fast") + ROW + REST, r"links.generations.3: needs the numbers"),
        (HEAD + ROW + REST + ROW + REST, "given twice"),
        (HEAD + ROW + REST + "    reference: fast\n", r"rules\.C05\.x\.reference: 'fast' is not a number"),
        (HEAD + ROW + REST + "    reference: [1.0]\n", r"reference: \['1\.0'\] is not a number"),
        (HEAD + ROW + REST + "    reference: {a: 1}\n", r"reference: \{'a': '1'\} is not a number"),
        (HEAD + ROW + REST + "    reference: true\n", r"reference: True is not a number"),
        (HEAD + ROW + REST + "    reference: 1.0.0\n", r"reference: '1\.0\.0' is not a number"),
        (HEAD + ROW + REST + "    reference: ''\n", r"reference: '' is not a number"),
    ],
)
def test_a_table_at_fault_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        thresholds.parse(text, "t.yaml")


def test_all_faults_come_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        thresholds.parse(HEAD + ROW.replace("band", "glob") + "    values: {low: 1.0}\n", "t.yaml")
    assert len(caught.value.details) == 1


def test_a_table_survives_its_record_and_another_programs_numbers() -> None:
    tree = json.loads(json.dumps(TABLE.to_json()).replace(".0,", ","))
    assert thresholds.of_record(tree) == TABLE


def test_a_changed_table_is_refused() -> None:
    tree = json.loads(json.dumps(TABLE.to_json()))
    tree["rules"]["C17.difference"]["values"]["fail_above"] = 1.0
    with pytest.raises(IntegrityError, match="thresholds were changed"):
        thresholds.of_record(tree)


@pytest.mark.parametrize("tree", [None, {}, {"rules": {"x": {}}, "lanes": {}, "sha256": ""}])
def test_a_table_that_is_none_is_told(tree: Any) -> None:
    with pytest.raises(UsageError, match="thresholds cannot be read"):
        thresholds.of_record(tree)


def test_another_table_is_in_force_only_inside_its_block() -> None:
    other = thresholds.parse(HEAD + ROW + REST, "t")
    with thresholds.using(other):
        assert thresholds.load() is other
    assert thresholds.load() is thresholds.shipped()
