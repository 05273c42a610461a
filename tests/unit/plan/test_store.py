from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import IntegrityError, UsageError
from envkit.plan.store import load_plan, plan_from_json, read_plan, store_plan
from tests.support import odd
from tests.support.judging import plan

PLANS = [plan(), plan(cuda=None)]


@pytest.mark.parametrize("made", PLANS)
def test_a_plan_survives_its_json(made: Any) -> None:
    again = plan_from_json(json.loads(made.canonical()), "here")
    assert again.digest == made.digest
    assert again.to_json() == made.to_json()
    assert again.resolution.to_json() == made.resolution.to_json()


def test_a_kept_plan_is_found_by_its_digest(tmp_path: Path) -> None:
    made = plan()
    path = store_plan(tmp_path, made)
    found = load_plan(tmp_path, made.digest)
    assert found is not None
    assert found.digest == made.digest
    assert path.parent == tmp_path / "plans"
    assert load_plan(tmp_path, plan(cuda=None).digest) is None


def test_a_plan_that_is_not_the_one_its_name_says_is_refused(tmp_path: Path) -> None:
    path = store_plan(tmp_path, plan())
    path.write_bytes(plan(cuda=None).canonical())
    with pytest.raises(IntegrityError, match="contains the plan"):
        load_plan(tmp_path, plan().digest)


@pytest.mark.parametrize("digest", ["", "latest", "sha256:../../etc/passwd", "sha256:" + "A" * 64])
def test_only_a_digest_names_a_plan(tmp_path: Path, digest: str) -> None:
    with pytest.raises(UsageError, match="is not a plan digest"):
        load_plan(tmp_path, digest)


def changed(**fields: Any) -> Any:
    tree = json.loads(plan().canonical())
    tree.update(fields)
    return tree


def without(name: str) -> Any:
    tree = json.loads(plan().canonical())
    del tree[name]
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {},
        {"schema": "envkit.plan/2"},
        without("resolution"),
        without("user"),
        without("smoke"),
        changed(surprise=1),
        changed(resolution={}),
        changed(resolution=None),
        changed(smoke={"tier": "quick", "speed": 3}),
        changed(env=["A=1"]),
        changed(installer="miniconda"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_place(tree: Any) -> None:
    with pytest.raises(UsageError) as caught:
        plan_from_json(tree, "plan.json")
    assert caught.value.message.startswith("plan.json: ")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"p\.json is not JSON"):
        read_plan(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"p\.json: no such file"):
        read_plan(tmp_path / "p.json")


@pytest.mark.requirement("R4")
def test_a_plan_with_a_value_of_another_type_is_refused() -> None:
    tried = 0
    for place, tree in odd.changed(json.loads(plan().canonical())):
        tried += 1
        try:
            made = plan_from_json(tree, "here")
        except UsageError:
            continue
        for texts in (made.entrypoint, made.cmd, made.conda, made.channels):
            assert all(isinstance(one, str) for one in texts), place
    assert tried > 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("entrypoint", [["x"]]), ("cmd", [1]), ("env", {"A": ["x"]}), ("env", {"A": 1}), ("labels", {"a": {}}),
        ("title", 7), ("conda", [None]), ("family", [{"a": 1}]), ("interpreter", 3),
    ],
)  # fmt: skip
def test_an_odd_value_inside_a_field_is_refused(field: str, value: object) -> None:
    tree = json.loads(PLANS[0].canonical())
    with pytest.raises(
        UsageError, match=r"^plan\.json: the fields of the plan do not have the types of envkit\.plan/1$"
    ):
        plan_from_json({**tree, field: value}, "plan.json")
