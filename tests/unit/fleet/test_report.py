"""What is said of many images, and the one exit code."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.fleet import report
from tests.unit.fleet.samples import IMPOSSIBLE, cell, outcome


@pytest.mark.parametrize(
    ("codes", "impossible", "skip", "code"),
    [
        ([], False, False, 0),
        ([0, 0], False, False, 0),
        ([0, 5], False, False, 5),
        ([0, 5], True, False, 3),
        ([0, 5], True, True, 5),
        ([0, 3, 5], False, False, 3),
        ([3, 9, 5], True, False, 9),
        ([9, 8], False, False, 8),
        ([8, 6], False, False, 6),
        ([6, 10], False, False, 10),
        ([10, 1], False, False, 1),
        ([130, 8], False, False, 130),
        ([124, 4], False, False, 124),
        ([77, 1], False, False, 77),
    ],
)
def test_the_gravest_exit_code(codes: list[int], impossible: bool, skip: bool, code: int) -> None:
    found = [outcome(str(number), code=one) for number, one in enumerate(codes)]
    assert report.exit_code(found, [IMPOSSIBLE] if impossible else [], skip=skip) == code


@given(st.lists(st.sampled_from(report.SEVERITY), min_size=1))
def test_the_order_of_the_images_does_not_matter(codes: list[int]) -> None:
    there, back = ([outcome(code=one) for one in row] for row in (codes, codes[::-1]))
    assert report.exit_code(there) == report.exit_code(back) in codes
    assert (report.exit_code(there) == 0) == (set(codes) == {0})


def test_the_table_names_every_image() -> None:
    cells = [cell("a", also=("a2",)), cell("b"), cell("c")]
    found = [
        outcome("a", place="oci:out/a"),
        outcome("b", "failed", 8, error="the registry denied access"),
        outcome("c", "unproved", 6, error="the image is not verified: FAIL, exit code 6", place="oci:out/c"),
    ]
    assert report.rows(found, [IMPOSSIBLE], cells) == [
        ["a", "built", "1.5", "oci:out/a"],
        ["b", "failed", "1.5", "the registry denied access"],
        ["c", "not verified", "1.5", "the image is not verified: FAIL, exit code 6"],
        ["a2", "equal", "", "the same image as a"],
        ["train-torch1.0", "impossible", "", "no build matches"],
    ]
    assert report.counts(found, [IMPOSSIBLE]) == "1 built, 1 not verified, 1 failed; 1 impossible"
    assert report.counts([]) == "nothing to build"


def test_the_document_holds_everything() -> None:
    record = {"summary": {"verdict": "FAIL"}}
    cells = [cell("a", (("torch", "2.7.1"),), also=("a2",), torch="2.7.1"), cell("b"), cell("c")]
    found = [
        outcome("b", "unproved", 6, record=record, digest="sha256:2"),
        outcome("a", place="oci:out/a", figures={"sent_bytes": 3.0}),
        outcome("c", "failed", 8, error="refused", hint="log in", details=("401",), log="/log"),
    ]
    tree = json.loads(
        json.dumps(report.document(cells, found, [IMPOSSIBLE], where="m.yaml", duration_s=1.23456, jobs=2, skip=True))
    )
    images = tree.pop("images")
    assert tree == {
        "schema": "envkit.fleet/1",
        "matrix": "m.yaml",
        "exit_code": 6,
        "jobs": 2,
        "duration_s": 1.235,
        "impossible": [
            {"name": "train-torch1.0", "axes": {"torch": "1.0"}, "reason": "no build matches", "hint": "envkit resolve"}
        ],
    }
    assert images[0] == {
        "name": "a",
        "axes": {"torch": "2.7.1"},
        "also": ["a2"],
        "plan": cells[0].plan.digest,
        "status": "built",
        "exit_code": 0,
        "digest": None,
        "place": "oci:out/a",
        "worker": "here:1",
        "duration_s": 1.5,
        "figures": {"sent_bytes": 3.0},
        "log": None,
        "failure": None,
        "verification": None,
    }
    assert images[1]["verification"] == {"verdict": "FAIL", "record": record}
    assert images[2]["failure"] == {"message": "refused", "hint": "log in", "details": ["401"]}
