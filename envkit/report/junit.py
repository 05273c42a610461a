"""The record as JUnit XML, for the test views of CI systems. There is no standard; this is the subset that all read."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from envkit.checks.reading import Tree, check_of, is_number, mapping
from envkit.ground.text import clean
from envkit.report.reading import blames_machine, headline, title_of, weight

_TROUBLE = {"FAIL": "failure", "ERROR": "error", "SKIP": "skipped"}


def render_junit(record: Tree) -> bytes:
    """Return one suite: a case for the verdict on the image, then one for each finding.

    FAIL is a failure, ERROR and a machine fault are errors, SKIP is skipped. Findings that are informational or
    unreliable pass, with their text as output and their verdict as a property. The first case fails if the exit code
    is not 0, so that the CI system shows the run as failed.
    """
    run, checks = record["run"], record["checks"]
    name, image = title_of(record)
    root = ET.Element("testsuites", name="envkit verify")
    suite = ET.SubElement(root, "testsuite", name=clean(f"envkit verify {name or image}"))
    # The common schema of JUnit files has times without a time zone.
    suite.set("timestamp", clean(run["started"]).removesuffix("Z"))
    properties = ET.SubElement(suite, "properties")
    for key, value in _facts(record).items():
        ET.SubElement(properties, "property", name=key, value=clean(value))
    suite.append(_verdict(record))
    for check in checks:
        suite.append(_case(check))
    cases = suite.findall("testcase")
    for element in (root, suite):
        element.set("tests", str(len(cases)))
        for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            element.set(key, str(sum(case.find(tag) is not None for case in cases)))
        element.set("time", _seconds(run["duration_s"]))
    ET.indent(root)
    text: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _facts(record: Tree) -> dict[str, object]:
    run, env = record["run"], record["env"]
    facts = {
        "verdict": headline(record["summary"]),
        "exit_code": record["summary"]["exit_code"],
        "image": record["subject"]["image"],
        "plan": record["subject"]["plan"],
        "tier": run["tier"],
        "runner": run["runner"],
        "isolation": mapping(run.get("isolation")).get("level"),
        "record": run["id"],
        "torch": env["sw"].get("torch"),
        "gpu": ", ".join(str(card.get("name")) for card in env["gpu"]) or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _verdict(record: Tree) -> ET.Element:
    summary = record["summary"]
    case = ET.Element("testcase", classname="envkit", name="verdict", time="0")
    lines = [f"{headline(summary)}, exit code {summary['exit_code']}"]
    for reason in summary["reasons"]:
        lines += [f"{reason['code']}: {reason['message']}", *([f"-> {reason['advice']}"] if reason["advice"] else [])]
    if summary["exit_code"]:
        failed = summary["verdict"] == "FAIL" and not blames_machine(summary)
        trouble = ET.SubElement(case, "failure" if failed else "error")
        trouble.set("type", clean(summary["verdict"]))
        trouble.set("message", clean(lines[0]))
        trouble.text = _text(lines)
    elif len(lines) > 1:
        ET.SubElement(case, "system-out").text = _text(lines)
    return case


def _case(check: Tree) -> ET.Element:
    case = ET.Element("testcase", classname=f"envkit.{clean(check_of(check['id']))}", name=clean(check["id"]))
    case.set("time", _seconds(check["duration_s"]))
    counted = weight(check)
    properties = ET.SubElement(case, "properties")
    for key, value in _numbers(check).items():
        ET.SubElement(properties, "property", name=key, value=clean(value))
    lines = [f"{check['title']} on {check['subject']}", check["message"], *(f"-> {line}" for line in check["advice"])]
    if counted in _TROUBLE:
        tag = "error" if blames_machine(check) else _TROUBLE[counted]
        trouble = ET.SubElement(case, tag, message=clean(check["message"]))
        trouble.set("type", clean(check["reason_code"]))
        trouble.text = _text(lines)
    elif check["verdict"] != "PASS":
        ET.SubElement(case, "system-out").text = _text([f"{check['verdict']} {check['reason_code']}", *lines])
    return case


def _numbers(check: Tree) -> dict[str, object]:
    metric = mapping(check["metric"])
    numbers = {"verdict": check["verdict"], "reason_code": check["reason_code"], "gates": str(check["gates"]).lower()}
    numbers |= {"blames": check["blames"]} if check.get("blames") else {}
    if is_number(metric.get("value")):
        numbers[str(metric["name"])] = (
            f"{metric['value']:.6g} {metric['unit'] if metric['unit'] != '1' else ''}".rstrip()
        )
    return {clean(key): value for key, value in numbers.items() if value is not None}


def _text(lines: list[str]) -> str:
    return "\n".join(clean(line) for line in lines)


def _seconds(value: object) -> str:
    return f"{value:.3f}" if is_number(value) else "0"
