from __future__ import annotations

import json
from typing import Any

import pytest

from envkit.report.sarif import render_sarif
from tests.support.records import HOSTILE, check, cpu_record, dead_record, gpu_record
from tests.support.schema import faults

_TEXT: dict[str, Any] = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "pattern": "."}},
}
_TEXT |= {"additionalProperties": False}
_BAG = {"type": "object"}
_COUNT = {"type": "integer", "minimum": 1}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_TEXT = _object(["text"], text={"type": "string", "pattern": "."})
_PLACE = _object(
    ["artifactLocation"],
    artifactLocation=_object(["uri"], uri={"type": "string", "pattern": r"^[A-Za-z0-9._~%/-]+$"}),
    region=_object(["startLine"], startLine=_COUNT),
)
_LOGICAL = _object(
    ["name", "fullyQualifiedName", "kind"],
    name={"type": "string"},
    fullyQualifiedName={"type": "string"},
    kind={"enum": ["resource"]},
)
_RESULT = _object(
    ["ruleId", "level", "message", "locations", "partialFingerprints"],
    ruleId={"type": "string", "pattern": "^([CS][0-9]{2}|verdict)$"},
    level={"enum": ["error", "warning", "note"]},
    message=_TEXT,
    locations={
        "type": "array",
        "minItems": 1,
        "items": _object(
            ["logicalLocations"], physicalLocation=_PLACE, logicalLocations={"type": "array", "items": _LOGICAL}
        ),
    },
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
    properties=_BAG,
)
_RULE = _object(["id"], id={"type": "string"}, name={"type": "string"}, shortDescription=_TEXT)
_INVOCATION = _object(
    ["executionSuccessful"],
    executionSuccessful={"type": "boolean"},
    exitCode={"type": "integer"},
    startTimeUtc={"type": "string", "pattern": "^[0-9-]+T[0-9:.]+Z$"},
)
_DRIVER = _object(
    ["name", "version", "rules"],
    name={"const": "envkit"},
    version={"type": "string"},
    semanticVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
    rules={"type": "array", "items": _RULE},
)
# The part of SARIF 2.1.0 that is written, as strict as the standard's own schema about it.
STRUCTURE = _object(
    ["$schema", "version", "runs"],
    **{"$schema": {"type": "string", "pattern": "sarif-schema-2.1.0.json$"}},
    version={"const": "2.1.0"},
    runs={
        "type": "array",
        "minItems": 1,
        "items": _object(
            ["tool", "results"],
            tool=_object(["driver"], driver=_DRIVER),
            automationDetails=_object(["id"], id={"type": "string"}),
            invocations={"type": "array", "items": _INVOCATION},
            results={"type": "array", "items": _RESULT},
            columnKind={"enum": ["unicodeCodePoints"]},
            properties=_BAG,
        ),
    },
)


def run(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render_sarif(tree))["runs"][0]
    return found


@pytest.mark.parametrize("tree", [gpu_record(), gpu_record(hostile=HOSTILE), cpu_record(), dead_record()])
def test_the_log_has_the_structure_of_sarif(tree: dict[str, Any]) -> None:
    log = json.loads(render_sarif(tree))
    assert faults(log, STRUCTURE) == []
    rules = [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    assert {result["ruleId"] for result in log["runs"][0]["results"]} <= set(rules)


def test_each_finding_worth_a_look_is_a_result_with_its_level_and_advice() -> None:
    by_finding = {result["properties"]["finding"]: result for result in run(gpu_record())["results"]}
    levels = {name: result["level"] for name, result in by_finding.items()}
    assert levels == {
        "C10.d2h_pinned_256MiB": "warning",
        "C10.link": "warning",
        "C12.matrix.io": "note",
        "C12.throughput.io": "note",
        "C13.shm": "error",
        "C17": "error",
        "C23.training": "warning",
    }
    text = by_finding["C13.shm"]["message"]["text"]
    assert text.startswith("SHM_TOO_SMALL: the loader keeps 154 MB in flight")
    assert "--shm-size=" in text


def test_a_failure_that_only_informs_is_a_warning() -> None:
    tree = gpu_record()
    check(tree, "C10.link").update(verdict="FAIL", gates=False)
    assert [one["level"] for one in run(tree)["results"] if one["properties"]["finding"] == "C10.link"] == ["warning"]


def test_a_run_that_proved_nothing_does_not_look_clean() -> None:
    tree = cpu_record()
    tree["summary"] |= {"verdict": "NOT_VERIFIED", "exit_code": 5}
    (result,) = run(tree)["results"]
    assert (result["ruleId"], result["level"]) == ("verdict", "error")
    assert result["message"]["text"].startswith("NOT VERIFIED, exit code 5")


@pytest.mark.parametrize(
    ("argv", "uri"),
    [
        (["envkit", "verify", "img", "--plan", "plans/a b.json"], "plans/a%20b.json"),
        (["envkit", "verify", "img", "--plan=plan.json"], "plan.json"),
        (["envkit", "build", "images/train.yaml", "-o", "out.json"], "images/train.yaml"),
        (["envkit", "verify", "img", "-o", "record.json"], None),
        (["envkit", "verify", "--plan", "/srv/plan.json"], None),
        (["envkit", "verify", "--plan", "../plan.json"], None),
        (["envkit", "build"], None),
        ([], None),
    ],
)
def test_a_result_is_shown_at_the_plan_or_definition_of_the_checkout(argv: list[str], uri: str | None) -> None:
    tree = gpu_record()
    tree["run"]["argv"] = argv
    location = run(tree)["results"][0]["locations"][0]
    place = location.get("physicalLocation")
    assert (place and place["artifactLocation"]["uri"]) == uri
    assert location["logicalLocations"][0]["fullyQualifiedName"].endswith("/C10.d2h_pinned_256MiB")


def test_a_fingerprint_stays_from_run_to_run_and_parts_findings() -> None:
    first, second = run(gpu_record())["results"], run(gpu_record())["results"]
    prints = [result["partialFingerprints"]["finding/v1"] for result in first]
    assert prints == [result["partialFingerprints"]["finding/v1"] for result in second]
    assert len(set(prints)) == len(prints)


def test_a_foreign_text_makes_no_link() -> None:
    tree = gpu_record(hostile="[click](https://example.com)")
    assert "\\[click]" in run(tree)["results"][0]["message"]["text"]
