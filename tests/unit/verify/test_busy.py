"""What reaches a time limit on a busy machine says nothing about the image: INCONCLUSIVE, exit code 5, one line."""

from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.catalog import catalog
from envkit.ground.errors import EngineError, TimeLimitError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.report.formats import render
from envkit.report.html import page
from envkit.report.text import render_text
from envkit.run.model import RunResult
from envkit.verify import driver, launch
from envkit.verify.driver import Options, verify_image
from envkit.verify.record import Record, schema
from tests.support.again import assert_same_again
from tests.support.judging import Load, Replay, document, inspected, observation, plan, printed
from tests.support.schema import faults

PLAN = plan(cuda=None)
IMAGE = inspected(PLAN)
QUICK = [entry.id for entry in catalog() if entry.tier == "quick"]
LATE = "C01 did not end within 192 s and could not be interrupted"
BUSY = {"psi_cpu_some": 0.98, "own_cpu": 0.2, "window_s": 197.0, "gate": "CPU pressure 0.98 above 0.10"}
QUIET = {"psi_cpu_some": 0.02, "own_cpu": 0.2, "window_s": 53.0, "gate": "clean"}


class Heavy(Load):
    """That of a busy machine."""

    text = "CPU pressure 0.97 above 0.10"


def stopped(noise: dict[str, Any] | None, code: str = "TIME_LIMIT") -> Any:
    """What the payload prints when its supervisor ended C01."""

    def failed(check: str, code: str, text: str) -> dict[str, Any]:
        reason = {"code": code, "message": text}
        return observation(check, "host", "error", reason=reason, noise=noise, controls=[], observed={})

    def answer(spec: dict[str, Any]) -> bytes:
        later = [failed(check, "SUITE_STOPPED", f"{LATE}; the suite stopped there") for check in QUICK[2:]]
        first = [observation("C00.env", "host", "skip"), failed("C01", code, LATE)]
        return printed(document(*first, *later, nonce=spec["nonce"]), spec["nonce"])

    return answer


def verified(runner: Replay, made: Any = PLAN, **options: Any) -> Record:
    record = verify_image(image_name("img"), made, runner, Silent(), Options(**options))
    assert faults(record.tree, schema(), closed=True) == []
    assert_same_again(record)
    return record


@pytest.mark.parametrize("code", ["TIME_LIMIT", "GPU_HANGS"])
def test_a_suite_that_was_stopped_on_a_busy_machine_is_inconclusive(code: str) -> None:
    record = verified(Replay(stopped(BUSY, code), image=IMAGE))
    assert (record.verdict, record.exit_code) == ("INCONCLUSIVE", 5)
    verdicts = {check["id"]: (check["verdict"], check["reason_code"]) for check in record.tree["checks"]}
    assert verdicts["C01"] == ("INCONCLUSIVE", "TIME_LIMIT")
    assert {verdicts[check] for check in QUICK[2:]} == {("INCONCLUSIVE", "SUITE_STOPPED")}
    assert record.tree["summary"]["blames"] is None


@pytest.mark.parametrize("noise", [QUIET, None])
def test_on_a_quiet_machine_it_stays_an_error_and_exit_124(noise: dict[str, Any] | None) -> None:
    record = verified(Replay(stopped(noise), image=IMAGE))
    assert (record.verdict, record.exit_code) == ("ERROR", 124)


def test_a_gpu_that_hangs_on_a_quiet_machine_stays_a_fault_of_the_machine() -> None:
    record = verified(Replay(stopped(QUIET, "GPU_HANGS"), image=IMAGE))
    assert (record.verdict, record.exit_code, record.tree["summary"]["blames"]) == ("FAIL", 9, "machine")


@pytest.mark.parametrize("noise", [BUSY, QUIET])
def test_one_line_tells_of_all_the_checks_that_did_not_run(noise: dict[str, Any]) -> None:
    """Fifteen times the same two lines hid the one check that had reached its limit."""
    record = verified(Replay(stopped(noise), image=IMAGE)).tree
    for text in (render_text(record, width=4000), render("md", record).decode()):
        assert text.count("the suite stopped there") == 1
        assert ", ".join(QUICK[2:]) in text
    assert [check for _, check, *_ in page._problems(record)] == ["C01"]


def test_the_report_says_that_the_machine_was_busy_and_what_to_do() -> None:
    text = render_text(verified(Replay(stopped(BUSY), image=IMAGE)).tree, width=200)
    assert "INCONCLUSIVE: the machine is busy: a check reached its time limit" in text
    assert "-> run it again while nothing else uses this machine" in text
    assert f"TIME_LIMIT: {LATE}; the machine was busy (CPU pressure 0.98 above 0.10)" in text
    assert "error" not in text


@pytest.mark.parametrize("allow_cpu", [True, False])
def test_a_suite_that_never_looked_for_a_gpu_does_not_say_that_there_is_none(allow_cpu: bool) -> None:
    made = plan()
    record = verified(Replay(stopped(BUSY), image=inspected(made)), made, allow_cpu=allow_cpu)
    assert (record.verdict, record.exit_code) == ("INCONCLUSIVE", 5)
    assert [reason["code"] for reason in record.tree["summary"]["reasons"]] == ["INCONCLUSIVE"]


def test_a_failure_of_the_image_counts_on_a_busy_machine_too() -> None:
    record = verified(Replay(stopped(BUSY), image={**IMAGE, "user": "root"}))
    assert (record.verdict, record.exit_code) == ("FAIL", 6)


def test_a_run_that_never_answered_on_a_busy_machine_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Pressure", Heavy)
    record = verified(Replay(TimeLimitError("the run reached its time limit of 600 s and was killed"), image=IMAGE))
    assert (record.verdict, record.exit_code) == ("INCONCLUSIVE", 5)
    (reason,) = record.tree["summary"]["reasons"]
    assert reason["message"].endswith("the machine was busy (CPU pressure 0.97 above 0.10)")
    assert "--timeout" in reason["advice"]
    missing = {check["verdict"] for check in record.tree["checks"] if check["reason_code"] == "NOT_OBSERVED"}
    assert missing == {"INCONCLUSIVE"}


def test_the_limit_of_a_run_stretches_on_a_busy_machine_but_not_the_user_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(load: type[Load], **options: Any) -> float:
        monkeypatch.setattr(driver, "Pressure", load)
        runner = Replay(stopped(BUSY), image=IMAGE)
        verified(runner, **options)
        return runner.limits.timeout_s

    assert limit(Heavy) == 4 * limit(Load)
    assert limit(Heavy, timeout_s=30.0) == 30.0


@pytest.mark.parametrize(
    ("load", "verdict", "code"), [(Heavy, "INCONCLUSIVE", "TIME_LIMIT"), (Load, "FAIL", "ENTRYPOINT_BROKEN")]
)
def test_a_start_that_does_not_end_counts_only_on_a_quiet_machine(load: type[Load], verdict: str, code: str) -> None:
    limits = []

    def run(_command: Any, cage: Any) -> RunResult:
        limits.append(cage.timeout_s)
        raise TimeLimitError("the run reached its time limit of 90 s and was killed")

    found = launch.launch_checks(run, entrypoint=(), prefix="/opt/env", nonce="n", pressure=load)
    assert [(str(item.finding.verdict), item.finding.reason_code) for item in found] == [(verdict, code)] * 2
    assert limits == [360.0 if load is Heavy else 90.0] * 2


def test_a_busy_machine_excuses_no_start_that_an_engine_refuses() -> None:
    def run(_command: Any, _cage: Any) -> RunResult:
        raise EngineError("no such file")

    found = launch.launch_checks(run, entrypoint=(), prefix="/opt/env", nonce="n", pressure=Heavy)
    assert [item.finding.reason_code for item in found] == ["ENTRYPOINT_BROKEN"] * 2


def test_a_probe_without_an_answer_on_a_busy_machine_is_inconclusive() -> None:
    observed = {"outcome": "timeout", "text": "no answer in 160 s", "expected_total": 4, "expected_last": [1]}

    def answer(noise: dict[str, Any]) -> Any:
        checks = [observation(check, "host", "skip") for check in QUICK if check != "C04"]
        checks.append(observation("C04.kernel", "gpu:0", observed=observed, noise=noise))
        return lambda spec: printed(document(*checks, nonce=spec["nonce"]), spec["nonce"])

    made = plan()
    busy = verified(Replay(answer(BUSY), image=inspected(made)), made)
    assert (busy.verdict, busy.exit_code) == ("INCONCLUSIVE", 5)
    quiet = verified(Replay(answer(QUIET), image=inspected(made)), made)
    assert (quiet.verdict, quiet.exit_code, quiet.tree["summary"]["diagnosis"]) == ("FAIL", 9, ["GPU_HANGS"])
