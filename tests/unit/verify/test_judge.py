from __future__ import annotations

import pytest

from envkit.checks.model import Finding, Verdict
from envkit.verify import judge as judge_module
from envkit.verify.judge import judge, not_selected
from tests.support.judging import SELECTED, document, observation, passing, verdict_rule

RULES = {"C04": passing, "C05": passing}


def one(observed: dict[str, object], **rules: object) -> Finding:
    judged = judge(document(observed), {}, SELECTED[1:], {"C05": passing, **rules})  # type: ignore[dict-item]
    assert len(judged) == 1
    return judged[0].finding


def test_every_selected_check_is_judged_in_the_order_of_the_selection() -> None:
    judged = judge(document(observation("C05.fp32"), observation("C05.bf16"), observation("C04")), {}, SELECTED, RULES)
    assert [(item.id, item.title, item.finding.verdict) for item in judged] == [
        ("C04", "kernel", Verdict.PASS),
        ("C05.fp32", "GEMM", Verdict.PASS),
        ("C05.bf16", "GEMM", Verdict.PASS),
    ]


def test_a_check_the_payload_left_out_is_an_error() -> None:
    missing = judge(document(observation("C04")), {}, SELECTED, RULES)[1]
    assert (missing.id, missing.finding.verdict, missing.finding.reason_code) == (
        "C05",
        Verdict.ERROR,
        "NOT_OBSERVED",
    )
    assert not missing.ran


def test_without_a_document_every_check_is_an_error_that_says_why() -> None:
    judged = judge(None, {}, SELECTED, RULES, absent=Finding(Verdict.ERROR, "not reported: OUT_OF_MEMORY", "X"))
    assert [(item.finding.verdict, item.finding.message) for item in judged] == [
        (Verdict.ERROR, "not reported: OUT_OF_MEMORY")
    ] * 2


def test_a_control_that_did_not_fail_overrules_the_rule() -> None:
    finding = one(observation("C05", controls=[{"name": "zeroed_element", "held": False, "detail": ""}]))
    assert (finding.verdict, finding.reason_code) == (Verdict.ERROR, "CONTROL_FAILED")
    assert "zeroed_element" in finding.message


def test_a_control_on_a_clock_says_nothing_on_a_busy_machine_and_counts_on_a_quiet_one() -> None:
    slack = [{"name": "twice_the_work_is_seen", "held": False, "detail": ""}]
    informs = verdict_rule(Verdict.PASS, gates=False)
    busy = one(observation("C05", controls=slack, noise={"gate": "noisy"}), C05=informs)
    quiet = one(observation("C05", controls=slack, noise={"gate": "clean"}), C05=informs)
    assert (busy.verdict, busy.reason_code, busy.rule["gates"]) == (Verdict.INCONCLUSIVE, "NOISY", False)
    assert (quiet.verdict, quiet.reason_code) == (Verdict.ERROR, "CONTROL_FAILED")


def test_a_wrong_result_is_a_failure_on_a_busy_machine_too() -> None:
    slack = [{"name": "twice_the_work_is_seen", "held": False, "detail": ""}]
    wrong, slow = (verdict_rule(Verdict.FAIL, type=kind) for kind in ("max_rel_err", "min_frac_of_limit"))
    busy = observation("C05", controls=slack, noise={"gate": "noisy"})
    assert [one(busy, C05=rule).verdict for rule in (wrong, slow)] == [Verdict.FAIL, Verdict.INCONCLUSIVE]


def test_a_warning_that_reads_no_clock_stays_on_a_busy_machine() -> None:
    slack = [{"name": "twice_the_work_is_seen", "held": False, "detail": ""}]
    fixed, informs = (verdict_rule(Verdict.WARN, type=kind, gates=False) for kind in ("equals", "informs"))
    busy = observation("C05", controls=slack, noise={"gate": "noisy"})
    assert [one(busy, C05=rule).verdict for rule in (fixed, informs)] == [Verdict.WARN, Verdict.INCONCLUSIVE]


@pytest.mark.parametrize("controls", [[], ["held"], [{"held": "yes"}]])
def test_a_check_without_a_sound_control_proves_nothing(controls: list[object]) -> None:
    assert one(observation("C05", controls=controls)).verdict is Verdict.ERROR


def test_an_observation_no_rule_knows_is_an_error() -> None:
    judged = judge(document(observation("C05"), observation("C77.new")), {}, SELECTED[1:], RULES)
    assert [item.finding.reason_code for item in judged] == [None, "NO_RULE"]


@pytest.mark.parametrize("fault", [KeyError("error"), TypeError("x"), ValueError("x"), ZeroDivisionError("x")])
def test_an_observation_that_a_rule_cannot_read_is_an_error(fault: Exception) -> None:
    def rule(*_: object) -> Finding:
        raise fault

    finding = one(observation("C05"), C05=rule)
    assert (finding.verdict, finding.reason_code) == (Verdict.ERROR, "MALFORMED_OBSERVATION")


def test_a_timed_rule_says_nothing_on_a_busy_machine_and_a_correctness_rule_still_does() -> None:
    busy = {"gate": "noisy"}
    timed = one(observation("C05", noise=busy), C05=verdict_rule(Verdict.FAIL, type="min_frac_of_limit"))
    exact = one(observation("C05", noise=busy), C05=verdict_rule(Verdict.FAIL, type="max_rel_err"))
    assert (timed.verdict, exact.verdict) == (Verdict.INCONCLUSIVE, Verdict.FAIL)


def test_a_timed_rule_stands_on_a_quiet_machine() -> None:
    quiet = observation("C05", noise={"gate": "clean"})
    assert one(quiet, C05=verdict_rule(Verdict.FAIL, type="min_ratio")).verdict is Verdict.FAIL


@pytest.mark.parametrize("kind", ["min_ratio", "min_frac_of_limit", "not_worse_than_baseline"])
def test_where_clocks_cry_wolf_a_timed_rule_informs_and_says_so(kind: str) -> None:
    tree = document(observation("C05", noise={"gate": "clean"}), observation("C04"))
    rules = {"C05": verdict_rule(Verdict.FAIL, type=kind), "C04": verdict_rule(Verdict.FAIL, type=kind)}
    found = {item.id: item for item in judge(tree, {}, SELECTED, rules, trust_timing=False)}
    assert (found["C05"].finding.verdict, found["C05"].gates) == (Verdict.FAIL, False)
    assert found["C05"].finding.message.endswith("timing is unreliable on this machine (self-test failed)")
    assert found["C04"].gates


def test_where_clocks_cry_wolf_an_exact_rule_stands() -> None:
    tree = document(observation("C05", noise={"gate": "clean"}))
    rules = {"C05": verdict_rule(Verdict.FAIL), "C04": passing}
    found = {item.id: item for item in judge(tree, {}, SELECTED, rules, trust_timing=False)}
    assert found["C05"].gates


def test_a_verdict_without_a_reason_is_an_error() -> None:
    assert one(observation("C05"), C05=verdict_rule(Verdict.WARN, None)).reason_code == "NO_REASON"


def test_checks_left_out_by_the_caller_are_on_record() -> None:
    left = not_selected(SELECTED, SELECTED[:1])
    assert [(item.id, item.finding.verdict, item.finding.reason_code) for item in left] == [
        ("C05", Verdict.SKIP, "NOT_SELECTED")
    ]


@pytest.mark.parametrize(
    ("kind", "clock", "verdict", "expected"),
    [
        ("min_frac_of_limit", "perf_counter", Verdict.PASS, Verdict.PASS),
        ("min_ratio", "cuda_event", Verdict.PASS, Verdict.PASS),
        # A ratio on the host's clock rises as well when the side that is divided by is disturbed.
        ("min_ratio", "perf_counter", Verdict.PASS, Verdict.INCONCLUSIVE),
        ("max_ratio", "cuda_event", Verdict.PASS, Verdict.INCONCLUSIVE),
        ("min_frac_of_limit", "cuda_event", Verdict.WARN, Verdict.INCONCLUSIVE),
        ("min_ratio", "cuda_event", Verdict.FAIL, Verdict.INCONCLUSIVE),
    ],
)
def test_noise_does_not_unmake_a_floor_that_was_reached(
    kind: str, clock: str, verdict: Verdict, expected: Verdict
) -> None:
    busy = observation("C05", noise={"gate": "CPU pressure 0.40 above 0.10"}, samples={"clock": clock})
    assert one(busy, C05=verdict_rule(verdict, None if verdict is Verdict.PASS else "X", type=kind)).verdict is expected


@pytest.mark.parametrize(
    ("code", "message", "advice"),
    [
        (18, "(Driver/library version mismatch)", "Restart the machine"),
        (4, "(Insufficient Permissions)", "--security-opt label=disable"),
        (999, "(Unknown Error)", "CDI"),
    ],
)
def test_the_code_with_which_nvml_refuses_decides_the_advice(code: int, message: str, advice: str) -> None:
    reason = {"code": "NO_NVML", "message": f"NVML does not answer: NVML error {code}"}
    tree = {"id": "C25.health", "subject": "image", "status": "skip", "reason": reason, "observed": {}}
    finding = judge_module._judged(tree, "NVML", {}, {}, {"C25": lambda *_: Finding(Verdict.PASS, "")}).finding
    assert message in finding.message
    assert advice in " ".join(finding.advice)
