"""What a judge tells its case is in the findings that follow, and in no earlier one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.checks.case import Case
from envkit.checks.model import Finding, Verdict
from envkit.checks.observed import MalformedError

PAGE = Path(__file__).parents[3] / "contributing" / "add-a-check.md"
TABLE = """\
schema: envkit.thresholds/1
links: {generations: {3: {gt_per_s: 8.0, payload: 0.98}}}
rules:
  C90.rate: {applies_to: [C90], type: minimum, gates: true, unit: 1/s, values: {warn_below: 2}, source: [this test]}
  C90.size: {applies_to: [C90], type: minimum, gates: true, unit: B, values: {fail_below: 5}, source: [this test]}
"""
RATE = {
    "type": "minimum",
    "warn_below": 2.0,
    "unit": "1/s",
    "gates": True,
    "source": "thresholds: C90.rate",
    "judgement": False,
}


def case_of(observed: dict[str, Any], name: str = "C90.thing", spec: dict[str, Any] | None = None) -> Case:
    return Case({"id": name, "subject": "gpu:0", "observed": observed}, spec or {}, {})


@pytest.fixture(autouse=True)
def _table() -> Any:
    with thresholds.using(thresholds.parse(TABLE, "table")):
        yield


def test_a_finding_has_what_the_case_was_told_by_then() -> None:
    case = case_of({})
    plain = case.passed("first")
    case.use("C90.rate")
    case.metric("rate", 3.0, "1/s", "higher")
    case.derive(half=1.5)
    whole = case.warn("SLOW", "second", "do this", "and that")
    case.derive(third=1.0)
    assert plain == Finding(Verdict.PASS, "first")
    metric = {"name": "rate", "value": 3.0, "unit": "1/s", "better": "higher"}
    assert whole == Finding(Verdict.WARN, "second", "SLOW", ("do this", "and that"), RATE, metric, {"half": 1.5})
    assert case.fail("X", "third").derived == {"half": 1.5, "third": 1.0}


def test_the_last_rule_is_the_one_that_was_applied() -> None:
    case = case_of({})
    assert case.use("C90.rate", gates=False).number("warn_below") == case.number("warn_below") == 2.0
    assert case.number("fail_below", "C90.size") == 5.0
    assert case.passed("ok").rule == {**RATE, "gates": False}
    case.amend(type="informs")
    assert case.passed("ok").rule == {**RATE, "gates": False, "type": "informs"}
    case.rule("equals", expected=0)
    assert case.passed("ok").rule == {"type": "equals", "expected": 0}


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (Case.warn, Verdict.WARN),
        (Case.fail, Verdict.FAIL),
        (Case.skip, Verdict.SKIP),
        (Case.inconclusive, Verdict.INCONCLUSIVE),
        (Case.error, Verdict.ERROR),
    ],
)
def test_every_verdict_but_pass_has_a_code(make: Any, verdict: Verdict) -> None:
    assert make(case_of({}), "CODE", "why", "do this") == Finding(verdict, "why", "CODE", ("do this",))
    assert case_of({}).finding(verdict, "CODE", "why") == Finding(verdict, "why", "CODE")


def test_a_blank_case_is_of_the_same_observation_and_was_told_nothing() -> None:
    case = case_of({"size": 4})
    case.use("C90.rate")
    case.metric("rate", 3.0, "1/s", "higher")
    case.derive(half=1.5)
    assert case.blank().value("size") == 4.0
    assert case.blank().passed("ok") == Finding(Verdict.PASS, "ok")


@pytest.mark.parametrize(
    ("name", "check", "part", "kind"),
    [
        ("C90", "C90", "", ""),
        ("C90.thing", "C90", "thing", "thing"),
        ("C14.bench.cnn.fp16", "C14", "bench.cnn.fp16", "bench"),
    ],
)
def test_an_id_has_a_check_a_part_and_a_kind(name: str, check: str, part: str, kind: str) -> None:
    case = case_of({}, name)
    assert (case.check, case.part, case.kind, case.subject) == (check, part, kind, "gpu:0")


def test_a_part_is_judged_by_its_function() -> None:
    parts = {"thing": lambda case: case.passed("thing"), "other": lambda case: case.passed("other")}
    assert case_of({}, "C90.other").by_part(parts).message == "other"
    with pytest.raises(MalformedError, match=re.escape("no rule is known for C90.none")):
        case_of({}, "C90.none").by_part(parts)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ("value", "rate is 'x', not a number"),
        ("optional", "rate is 'x', not a number"),
        ("flag", "rate is 'x', not true or false"),
        ("mapping", "rate is not an object"),
        ("strings", "rate is not a list of strings"),
        ("objects", "rate is not a list of objects"),
    ],
)
def test_a_field_of_another_type_is_malformed(read: str, words: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(words)):
        getattr(case_of({"rate": "x"}), read)("rate")


@pytest.mark.parametrize("value", [None, {}, "x", [1], [{"a": 1}, None]])
def test_a_list_of_objects_has_nothing_else(value: Any) -> None:
    assert case_of({"rows": [{}]}).objects("rows", "readings") == [{}]
    with pytest.raises(MalformedError, match="rows is not a list of readings"):
        case_of({"rows": value}).objects("rows", "readings")


def test_the_example_of_the_page_judges() -> None:
    (block,) = re.findall(r"```python\n# judge\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"Case": Case, "Finding": Finding}
    exec(block, names)
    judge, spec = names["judge"], {"thing": "round"}
    passed = judge(case_of({"thing": "round", "per_s": 3}, spec=spec))
    assert (passed.verdict, passed.message, passed.rule) == (Verdict.PASS, "round, 3.0 things/s", RATE)
    slow = judge(case_of({"thing": "round", "per_s": 1}, spec=spec))
    assert (slow.verdict, slow.reason_code, slow.metric["value"]) == (Verdict.WARN, "THING_SLOW", 1.0)
    other = judge(case_of({"thing": "flat", "per_s": 3}, spec=spec))
    assert (other.verdict, other.reason_code, other.rule["thing"]) == (Verdict.FAIL, "THING_DIFFERS", "round")
