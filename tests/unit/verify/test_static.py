from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.model import Verdict
from envkit.ground.naming import LABEL_PREFIX
from envkit.verify.static import image_facts, static_checks
from tests.support.judging import inspected, plan

PLAN = plan()


def verdicts(**changed: Any) -> dict[str, tuple[str, str | None]]:
    judged = static_checks(image_facts(inspected(PLAN, **changed)), PLAN)
    return {item.id: (str(item.finding.verdict), item.finding.reason_code) for item in judged}


def test_an_image_as_planned_passes_everything_and_every_control_holds() -> None:
    judged = static_checks(image_facts(inspected(PLAN)), PLAN)
    assert {item.finding.verdict for item in judged} == {Verdict.PASS}
    assert [item.id for item in judged] == ["S00", "S01", "S02", "S03", "S04"]
    for item in judged:
        assert item.observation is not None
        assert [control["held"] for control in item.observation["controls"]] == [True]


@pytest.mark.parametrize(
    ("check", "changed", "expected"),
    [
        ("S00", {"labels": {}}, ("WARN", "UNLABELLED")),
        ("S00", {"labels": {f"{LABEL_PREFIX}.plan": "sha256:" + "b" * 64}}, ("FAIL", "PLAN_MISMATCH")),
        ("S00", {"labels": {f"{LABEL_PREFIX}.plan": PLAN.digest}}, ("FAIL", "LABEL_MISMATCH")),
        ("S01", {"architecture": "arm64"}, ("FAIL", "PLATFORM_MISMATCH")),
        ("S01", {"architecture": ""}, ("FAIL", "PLATFORM_MISMATCH")),
        ("S02", {"user": ""}, ("FAIL", "RUNS_AS_ROOT")),
        ("S02", {"user": "0:0"}, ("FAIL", "RUNS_AS_ROOT")),
        ("S02", {"user": "1001:1001"}, ("WARN", "USER_MISMATCH")),
        ("S03", {"env": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}}, ("WARN", "ENV_SHADOWS")),
        ("S03", {"env": ["LD_PRELOAD=/x.so"]}, ("WARN", "ENV_SHADOWS")),
        ("S03", {"env": {"NVIDIA_DISABLE_REQUIRE": "1"}}, ("WARN", "DRIVER_CHECK_DISABLED")),
        ("S03", {"env": {"NVIDIA_DRIVER_CAPABILITIES": "utility"}}, ("FAIL", "NO_COMPUTE_CAPABILITY")),
        ("S03", {"env": {"NVIDIA_DRIVER_CAPABILITIES": "all"}}, ("PASS", None)),
        ("S04", {"size": None}, ("SKIP", "NO_SIZE")),
    ],
)
def test_a_fault_is_named(check: str, changed: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert verdicts(**changed)[check] == expected


def test_a_root_image_that_was_planned_so_is_a_warning() -> None:
    root = plan(user="0:0")
    judged = static_checks(image_facts(inspected(root)), root)
    assert (judged[2].finding.verdict, judged[2].finding.reason_code) == (Verdict.WARN, "RUNS_AS_ROOT")


def test_a_variable_that_the_plan_sets_shadows_nothing_unasked() -> None:
    assert verdicts(env={"PYTHONPATH": ""})["S03"] == ("PASS", None)


def test_without_a_plan_what_is_promised_is_skipped_and_the_rest_is_said() -> None:
    judged = static_checks(image_facts(inspected(None)), None)
    assert [str(item.finding.verdict) for item in judged] == ["SKIP", "SKIP", "WARN", "PASS", "PASS"]


def test_the_record_holds_no_other_variable_of_the_image() -> None:
    judged = static_checks(image_facts(inspected(PLAN, env={"API_KEY": "abc", "LD_PRELOAD": "/x"})), PLAN)
    assert judged[3].observation is not None
    assert judged[3].observation["observed"]["env"] == {"LD_PRELOAD": "/x"}
