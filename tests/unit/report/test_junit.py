from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from envkit.report.junit import render_junit
from tests.support.records import HOSTILE, check, cpu_record, dead_record, gpu_record

# What Jenkins, GitLab and GitHub's viewers read; anything else in the file would be lost on one of them.
_ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "properties": set[str](),
    "property": {"name", "value"},
    "testcase": {"classname", "name", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set[str](),
}
_CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"properties", "failure", "error", "skipped", "system-out"},
}


def cases(tree: dict[str, object]) -> dict[str, ET.Element]:
    return {case.get("name", ""): case for case in ET.fromstring(render_junit(tree)).iter("testcase")}


@pytest.mark.parametrize("tree", [gpu_record(), gpu_record(hostile=HOSTILE), cpu_record(), dead_record()])
def test_only_what_every_viewer_reads_is_written(tree: dict[str, object]) -> None:
    for element in ET.fromstring(render_junit(tree)).iter():
        assert set(element.attrib) <= _ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= _CHILDREN.get(element.tag, set())
        assert all(char.isprintable() or char == "\n" for char in "".join(element.itertext()))


def test_a_parser_of_others_counts_what_the_record_counts() -> None:
    tree = gpu_record()
    read = JUnitXml.fromstring(render_junit(tree).decode())
    counts = tree["summary"]["counts"]
    # One more of each: the case that says the verdict on the image.
    assert (read.tests, read.failures) == (len(tree["checks"]) + 1, counts["FAIL"] + 1)
    assert (read.errors, read.skipped) == (counts["ERROR"], counts["SKIP"])
    (suite,) = read
    kinds = {case.name: [type(item) for item in case.result] for case in suite}
    assert kinds["C13.shm"] == [Failure]
    assert kinds["C17"] == [Error]
    assert kinds["C09"] == [Skipped]
    assert kinds["C10.link"] == []


def test_a_failure_carries_code_message_and_advice() -> None:
    failure = cases(gpu_record())["C13.shm"].find("failure")
    assert failure is not None
    assert failure.get("type") == "SHM_TOO_SMALL"
    assert "154 MB in flight" in failure.get("message", "")
    assert "-> Start the container with --shm-size=" in (failure.text or "")


@pytest.mark.parametrize(("name", "verdict"), [("C10.link", "WARN"), ("C12.throughput.io", "INCONCLUSIVE")])
def test_what_does_not_fail_is_output_and_a_property(name: str, verdict: str) -> None:
    case = cases(gpu_record())[name]
    assert (case.findtext("system-out") or "").startswith(verdict)
    assert {item.get("name"): item.get("value") for item in case.iter("property")}["verdict"] == verdict


def test_a_failure_that_only_informs_does_not_turn_the_view_red() -> None:
    tree = gpu_record()
    check(tree, "C10.link").update(verdict="FAIL", gates=False)
    assert cases(tree)["C10.link"].find("failure") is None


def test_the_first_case_is_red_where_the_exit_code_is_not_zero() -> None:
    assert next(iter(cases(gpu_record()))) == "verdict"
    assert cases(gpu_record())["verdict"].find("failure") is not None
    tree = gpu_record()
    tree["summary"] |= {"verdict": "NOT_VERIFIED", "exit_code": 5}
    trouble = cases(tree)["verdict"].find("error")
    assert trouble is not None
    assert trouble.get("message") == "NOT VERIFIED, exit code 5"
    tree["summary"] |= {"verdict": "PASS", "exit_code": 0, "reasons": []}
    assert len(cases(tree)["verdict"]) == 0


def test_numbers_are_properties_with_their_unit() -> None:
    case = cases(gpu_record())["C10.h2d_pinned_256MiB"]
    assert {item.get("name"): item.get("value") for item in case.iter("property")}["bandwidth"] == "55.2 GB/s"
