from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.model import Finding, Verdict
from envkit.verify.exitcode import Reason, Summary, Trouble, summarize
from envkit.verify.judge import Judged, judge
from envkit.verify.spec import EMPTY, spec_of_plan
from tests.support.judging import SELECTED, document, observation, passing, plan, verdict_rule

CPU = spec_of_plan(plan(cuda=None))
GPU = spec_of_plan(plan())


def found(verdict: Verdict, code: str | None = "CODE", check: str = "C05", **rule: Any) -> Judged:
    finding = Finding(verdict, "message", None if verdict is Verdict.PASS else code, rule=rule)
    status = {Verdict.SKIP: "skip", Verdict.ERROR: "error"}.get(verdict, "ran")
    return Judged(id=check, title="t", subject="cpu", finding=finding, observation={"status": status})


def total(*verdicts: Verdict, spec: dict[str, Any] = CPU) -> Summary:
    return summarize([found(verdict) for verdict in verdicts], spec)


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code"),
    [
        ((Verdict.PASS,), "PASS", 0),
        ((Verdict.PASS, Verdict.SKIP), "PASS", 0),
        ((Verdict.PASS, Verdict.WARN), "WARN", 0),
        ((Verdict.WARN, Verdict.INCONCLUSIVE, Verdict.PASS), "INCONCLUSIVE", 5),
        ((Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.PASS), "ERROR", 6),
        ((Verdict.PASS, Verdict.ERROR, Verdict.FAIL), "FAIL", 6),
    ],
)
def test_the_worst_verdict_is_the_images(verdicts: tuple[Verdict, ...], verdict: str, code: int) -> None:
    summary = total(*verdicts)
    assert (summary.verdict, summary.exit_code) == (verdict, code)


def test_a_check_that_ran_and_was_skipped_is_not_a_result() -> None:
    """C00.gpu of a CPU image runs, and finds that the plan asks for no GPU."""
    item = found(Verdict.SKIP)
    ran = Judged(id=item.id, title="t", subject="cpu", finding=item.finding, observation={"status": "ran"})
    summary = summarize([ran], CPU)
    assert (summary.verdict, [reason.code for reason in summary.reasons]) == ("ERROR", ["NOTHING_EXECUTED"])


def test_counts_hold_every_verdict() -> None:
    assert total(Verdict.PASS, Verdict.SKIP, Verdict.PASS).counts == {
        "PASS": 2,
        "WARN": 0,
        "FAIL": 0,
        "SKIP": 1,
        "INCONCLUSIVE": 0,
        "ERROR": 0,
    }


@pytest.mark.parametrize("verdicts", [(), (Verdict.SKIP, Verdict.SKIP)])
def test_nothing_executed_is_an_error(verdicts: tuple[Verdict, ...]) -> None:
    summary = total(*verdicts)
    assert (summary.verdict, summary.exit_code) == ("ERROR", 6)
    assert [reason.code for reason in summary.reasons] == ["NOTHING_EXECUTED"]


def test_static_checks_alone_prove_nothing() -> None:
    assert summarize([found(Verdict.PASS, check="S00")], CPU).verdict == "ERROR"


def test_a_finding_that_informs_warns_at_most_and_its_noise_is_no_matter() -> None:
    fails = summarize([found(Verdict.PASS), found(Verdict.FAIL, gates=False)], CPU)
    noisy = summarize([found(Verdict.PASS), found(Verdict.INCONCLUSIVE, gates=False)], CPU)
    assert (fails.verdict, fails.exit_code) == ("WARN", 0)
    assert (noisy.verdict, noisy.exit_code) == ("PASS", 0)


def test_only_findings_that_inform_are_not_enough() -> None:
    assert summarize([found(Verdict.PASS, gates=False)], CPU).verdict == "ERROR"


def gpu_summary(kernel: dict[str, Any], spec: dict[str, Any], rule: Any = passing) -> Summary:
    rules = {"C04": rule, "C05": passing}
    return summarize(judge(document(kernel, observation("C05")), spec, SELECTED, rules), spec)


@pytest.mark.requirement("R49")
def test_a_gpu_image_without_a_gpu_is_never_pass() -> None:
    summary = gpu_summary(observation("C04", "gpu:0", "skip"), GPU)
    assert (summary.verdict, summary.exit_code, summary.gpu) == ("NOT_VERIFIED", 5, "absent")
    assert "CUDA 12.6" in summary.reasons[0].message
    assert "--allow-cpu" in (summary.reasons[0].advice or "")


@pytest.mark.requirement("R49")
def test_allow_cpu_gives_exit_0_and_stays_not_verified() -> None:
    summary = gpu_summary(observation("C04", "gpu:0", "skip"), {**GPU, "allow_cpu": True})
    assert (summary.verdict, summary.exit_code, summary.gpu) == ("NOT_VERIFIED", 0, "absent")
    assert summary.reasons[0].code == "NO_GPU"


def test_allow_cpu_excuses_nothing_else() -> None:
    judged = judge(
        document(observation("C04", "gpu:0", "skip"), observation("C05")),
        {},
        SELECTED,
        {"C04": passing, "C05": verdict_rule(Verdict.FAIL)},
    )
    assert summarize(judged, {**GPU, "allow_cpu": True}).exit_code == 6
    assert summarize([], {**GPU, "allow_cpu": True}).exit_code == 5
    assert summarize([found(Verdict.PASS)], {**EMPTY, "gpu": True, "allow_cpu": True}).exit_code == 5
    assert summarize([found(Verdict.INCONCLUSIVE)], {**GPU, "allow_cpu": True}).exit_code == 5


def test_a_gpu_image_on_a_gpu_passes() -> None:
    summary = gpu_summary(observation("C04", "gpu:0"), GPU)
    assert (summary.verdict, summary.exit_code, summary.gpu) == ("PASS", 0, "exercised")


def test_a_kernel_that_failed_is_a_failure_and_no_missing_gpu() -> None:
    summary = gpu_summary(observation("C04", "gpu:0"), GPU, verdict_rule(Verdict.FAIL))
    assert (summary.verdict, summary.exit_code, summary.gpu) == ("FAIL", 6, "exercised")


def test_a_skipped_kernel_is_not_made_up_for_by_another_check() -> None:
    judged = judge(
        document(observation("C04", "gpu:0", "skip"), observation("C05", "gpu:0")),
        {},
        SELECTED,
        {"C04": passing, "C05": passing},
    )
    assert summarize(judged, GPU).verdict == "NOT_VERIFIED"


def test_an_image_that_promises_nothing_is_not_verified() -> None:
    summary = summarize([found(Verdict.PASS)], EMPTY)
    assert (summary.verdict, summary.exit_code) == ("NOT_VERIFIED", 5)
    assert summary.reasons[0].code == "NO_PLAN"


def test_that_torch_cannot_be_imported_is_the_first_reason() -> None:
    """It stood last, below a PASS for versions that nobody had looked at."""
    missing = found(Verdict.SKIP, "TORCH_MISSING")
    summary = summarize([found(Verdict.PASS, None, "C00"), missing], EMPTY)
    assert (summary.verdict, summary.exit_code) == ("NOT_VERIFIED", 5)
    assert [reason.code for reason in summary.reasons] == ["TORCH_MISSING", "NO_PLAN"]
    assert summary.reasons[0].message == missing.finding.message
    assert summarize([found(Verdict.FAIL, "TORCH_MISSING", "C01"), missing], CPU).exit_code == 6
    allowed = summarize([found(Verdict.PASS, None, "C00"), missing], {**GPU, "allow_cpu": True})
    assert allowed.exit_code == 5, "a missing GPU may be accepted, a missing torch may not"


def test_an_image_that_promises_nothing_can_fail() -> None:
    assert summarize([found(Verdict.FAIL)], EMPTY).exit_code == 6


def test_a_fault_of_the_machine_alone_is_exit_code_9() -> None:
    old = found(Verdict.FAIL, "DRIVER_TOO_OLD")
    assert summarize([old], CPU).exit_code == 9
    assert summarize([old, found(Verdict.FAIL, "GPU_EXCLUSIVE")], CPU).exit_code == 9
    assert summarize([old, found(Verdict.FAIL, "WRONG_TORCH")], CPU).exit_code == 6


def test_only_time_limits_are_a_time_limit() -> None:
    late = found(Verdict.ERROR, "TIME_LIMIT")
    assert summarize([found(Verdict.PASS), late], CPU).exit_code == 124
    assert summarize([found(Verdict.PASS), late, found(Verdict.ERROR, "EXCEPTION")], CPU).exit_code == 6


def test_trouble_decides_where_nothing_is_worse() -> None:
    trouble = Trouble(verdict=Verdict.ERROR, exit_code=124, reason=Reason(code="TIME_LIMIT", message="m"))
    late = summarize([found(Verdict.ERROR)], CPU, trouble=trouble)
    worse = summarize([found(Verdict.FAIL)], CPU, trouble=trouble)
    assert (late.verdict, late.exit_code) == ("ERROR", 124)
    assert (worse.verdict, worse.exit_code) == ("FAIL", 6)
    assert [reason.code for reason in late.reasons] == ["TIME_LIMIT"]


def test_diagnosis_names_each_code_once_worst_first() -> None:
    summary = summarize(
        [found(Verdict.WARN, "B"), found(Verdict.FAIL, "A"), found(Verdict.WARN, "B"), found(Verdict.SKIP, "C")], CPU
    )
    assert summary.diagnosis == ("A", "B")
