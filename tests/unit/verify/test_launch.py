from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from envkit.checks.model import Verdict
from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, TimeLimitError
from envkit.plan.planner import ENTRY
from envkit.run.model import RunLimits, RunResult
from envkit.verify.judge import Judged
from envkit.verify.launch import OTHER_USER, launch_checks
from tests.support.judging import Load


def result(stdout: str, exit_code: int = 0, stderr: str = "") -> RunResult:
    return RunResult(
        exit_code=exit_code,
        stdout=stdout.encode(),
        stderr=stderr.encode(),
        duration_s=0.1,
        oom_killed=False,
        image_id="i",
    )


def answer(**changed: Any) -> str:
    return "activated\n" + json.dumps({"nonce": "n", "prefix": "/opt/env", "uid": 1000, "torch": "2.7.1", **changed})


def launched(
    said: RunResult | EnvkitError,
    *,
    entrypoint: tuple[str, ...] = ("tini", "--", "/bin/bash", ENTRY),
    **changed: Any,
) -> tuple[Judged, ...]:
    asked: list[tuple[Sequence[str], RunLimits]] = []

    def run(command: Sequence[str], limits: RunLimits) -> RunResult:
        asked.append((command, limits))
        if isinstance(said, EnvkitError):
            raise said
        return said

    given = {"entrypoint": entrypoint, "prefix": "/opt/env", "nonce": "n", "pressure": Load, **changed}
    judged = launch_checks(run, **given)
    assert [limits.user for _, limits in asked] in ([], [None, OTHER_USER])
    assert all(command[0] == "python" for command, _ in asked)
    return judged


@pytest.mark.parametrize("entrypoint", [(), ("tini", "--", "/bin/bash", ENTRY)])
def test_the_environments_python_passes_and_its_controls_hold(entrypoint: tuple[str, ...]) -> None:
    judged = launched(result(answer()), entrypoint=entrypoint)
    assert [(item.id, item.finding.verdict) for item in judged] == [("S05", Verdict.PASS), ("S06", Verdict.PASS)]
    for item in judged:
        assert item.observation is not None
        assert [control["held"] for control in item.observation["controls"]] == [True, True]
        assert "nonce" not in item.observation["observed"]["told"]


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        (result(answer(prefix="/usr")), ["OTHER_PYTHON", "OTHER_PYTHON"]),
        (result(answer(), exit_code=1), ["ENTRYPOINT_BROKEN", "OTHER_USER_FAILS"]),
        (result(answer(nonce="old")), ["ENTRYPOINT_BROKEN", "OTHER_USER_FAILS"]),
        (result(""), ["ENTRYPOINT_BROKEN", "OTHER_USER_FAILS"]),
        (result("[" * 100_000), ["ENTRYPOINT_BROKEN", "OTHER_USER_FAILS"]),
        (EngineError("no such file"), ["ENTRYPOINT_BROKEN", "ENTRYPOINT_BROKEN"]),
        (TimeLimitError("too long"), ["ENTRYPOINT_BROKEN", "ENTRYPOINT_BROKEN"]),
    ],
)
def test_a_broken_start_is_a_failure_with_advice(said: RunResult | EnvkitError, codes: list[str]) -> None:
    judged = launched(said)
    assert [item.finding.verdict for item in judged] == [Verdict.FAIL, Verdict.FAIL]
    assert [item.finding.reason_code for item in judged] == codes
    assert all(item.finding.advice for item in judged)


def test_an_engine_that_went_away_is_an_error() -> None:
    assert {item.finding.reason_code for item in launched(EnvironmentProblem("gone"))} == {"SURROUNDINGS"}


def test_the_last_line_of_stderr_is_told_without_control_characters() -> None:
    judged = launched(result("", 126, "first\n\x1b[31mpermission denied\n"))
    assert judged[0].finding.message == "python ended with exit code 126: [31mpermission denied"


def test_what_is_not_promised_or_takes_no_command_is_skipped() -> None:
    own = launched(result(answer()), entrypoint=("/srv/serve",))
    nothing = launched(result(answer()), prefix=None)
    assert {item.finding.reason_code for item in own} == {"OWN_ENTRYPOINT"}
    assert {item.finding.reason_code for item in nothing} == {"NOT_PROMISED"}
