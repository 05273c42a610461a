"""The record as SARIF 2.1.0, for code scanning views. Passed and skipped findings are left out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import envkit
from envkit.checks.reading import Tree, sequence
from envkit.ground.text import clean
from envkit.report.formats import pretty
from envkit.report.reading import by_check, code_of, headline, neutral, title_of, weight

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"FAIL": "error", "ERROR": "error", "WARN": "warning", "INCONCLUSIVE": "warning"}
_SOURCES = (".json", ".yaml", ".yml")
_SUMMARY = "verdict"


def render_sarif(record: Tree) -> bytes:
    """Return one SARIF run: a rule for each check, a result for each finding with a problem."""
    checks, summary = record["checks"], record["summary"]
    groups = by_check(checks)
    locations = _locations(record)
    results = [_result(check, locations) for check in checks if weight(check) in _LEVELS]
    if summary["exit_code"] and not any(result["level"] == "error" for result in results):
        results.insert(0, _verdict(record, locations))
    rules = [_rule(_SUMMARY, "the verdict on the image")]
    rules += [_rule(check, str(group[0]["title"])) for check, group in groups.items()]
    name, image = title_of(record)
    driver = {
        "name": "envkit",
        "version": envkit.__version__,
        "semanticVersion": envkit.__version__,
        "rules": rules,
    }
    invocation = {
        # Describes whether the tool ran, not whether the image passed.
        "executionSuccessful": True,
        "exitCode": summary["exit_code"],
        "startTimeUtc": clean(record["run"]["started"]),
    }
    run = {
        "tool": {"driver": driver},
        # GitHub takes what is before the last slash as the category, so each image replaces only its own results.
        "automationDetails": {"id": f"envkit-verify/{clean(name or image)}/"},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": headline(summary), "image": clean(image), "record": record["run"]["id"]},
    }
    return (pretty({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n").encode()


def _rule(check: str, title: str) -> dict[str, Any]:
    return {"id": clean(check), "name": clean(check), "shortDescription": {"text": clean(title)}}


def _result(check: Tree, locations: Tree) -> dict[str, Any]:
    check_id = str(check["id"])
    lines = [f"{code_of(check)}: {check['message']}", *(str(line) for line in check["advice"])]
    level = "note" if neutral(check) else _LEVELS[weight(check)]
    return {
        **_message(check_id.partition(".")[0], level, lines, locations, check_id),
        "properties": {
            "finding": clean(check_id),
            "subject": clean(check["subject"]),
            "verdict": check["verdict"],
            "gates": check["gates"],
            "blames": check.get("blames"),
        },
        "partialFingerprints": {"finding/v1": _digest(check_id, check["subject"], check["reason_code"])},
    }


def _verdict(record: Tree, locations: Tree) -> dict[str, Any]:
    """Return the result `verdict`: a run that is not verified has no failed check and would otherwise look clean."""
    summary = record["summary"]
    lines = [f"{headline(summary)}, exit code {summary['exit_code']}"]
    for reason in summary["reasons"]:
        lines += [f"{reason['code']}: {reason['message']}", *([reason["advice"]] if reason["advice"] else [])]
    result = _message(_SUMMARY, "error", lines, locations, _SUMMARY)
    return {**result, "partialFingerprints": {"finding/v1": _digest(_SUMMARY, summary["verdict"])}}


def _message(rule: str, level: str, lines: Sequence[str], locations: Tree, name: str) -> dict[str, Any]:
    logical = {"name": clean(name), "fullyQualifiedName": f"{locations['image']}/{clean(name)}", "kind": "resource"}
    location = {**locations["physical"], "logicalLocations": [logical]}
    # SARIF messages have links in square brackets; escape them, because the text comes from the image.
    text = "\n".join(clean(line).replace("\\", "\\\\").replace("[", "\\[") for line in lines)
    return {"ruleId": clean(rule), "level": level, "message": {"text": text}, "locations": [location]}


def _locations(record: Tree) -> dict[str, Any]:
    """Return the locations of results: the plan or definition of the command line, relative to the checkout, if any.

    Without one, results have only the logical location in the image.
    """
    physical: dict[str, Any] = {}
    source = _source([str(word) for word in sequence(record["run"]["argv"])])
    if source is not None:
        # GitHub requires a line for a file, and a plan has none for a finding, so it is the first.
        location = {"artifactLocation": {"uri": quote(source)}, "region": {"startLine": 1}}
        physical = {"physicalLocation": location}
    return {"physical": physical, "image": clean(title_of(record)[1])}


def _source(argv: Sequence[str]) -> str | None:
    """Return the plan or definition among the arguments if it is a relative path."""
    candidates = [
        value.partition("=")[2] if value.startswith("--plan=") else value
        for before, value in zip(("", *argv), argv, strict=False)
        if before == "--plan" or value.startswith("--plan=") or not (before.startswith("-") or value.startswith("-"))
    ]
    for value in candidates[1:]:  # the first one is the command `verify`
        path = PurePosixPath(clean(value))
        if path.suffix in _SOURCES and not path.is_absolute() and ".." not in path.parts:
            return str(path)
    return None


def _digest(*parts: object) -> str:
    text = "\0".join(str(part) for part in parts)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
