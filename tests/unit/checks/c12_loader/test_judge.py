from typing import Any

import pytest

from envkit.checks.case import Case
from envkit.checks.catalog import judges
from envkit.checks.model import Finding, Verdict
from envkit.verify.judge import judge

ORDER = {"num_workers": 2, "samples": 64, "batch": 8, "received": 64, "missing": 0, "out_of_place": 0, "damaged": 0}
EXCEPTION = {"exception": "ValueError", "carries_text": True}
TIMEOUT = {"exception": "RuntimeError", "timed_out": True, "timeout_s": 0.4, "hang_s": 1.2, "took_s": 1.25}
PINNED = {"batches": 8, "pinned_batches": 8, "received": 64, "missing": 0, "out_of_place": 0, "damaged": 0}
SWEEP = {
    "workload": "cpu",
    "effective_cpus": 2.0,
    "recommended": {"num_workers": 2, "persistent_workers": True, "pin_memory": False},
    "samples_per_s": 958.0,
    "best_workers_over_none": 1.46,
    "declared_num_workers": None,
}


def found(part: str, observed: dict[str, Any], **changed: Any) -> Finding:
    return judges()["C12"](Case({"id": f"C12.{part}", "observed": {**observed, **changed}}, {}, {}))


@pytest.mark.parametrize(
    ("part", "observed"),
    [
        ("order.nw2", ORDER),
        ("exception", EXCEPTION),
        ("timeout", TIMEOUT),
        ("pinned", PINNED),
        ("throughput.cpu", SWEEP),
    ],
)
def test_a_healthy_loader_passes(part: str, observed: dict[str, Any]) -> None:
    assert found(part, observed).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("part", "observed", "changed", "code"),
    [
        ("order.nw2", ORDER, {"missing": 1, "received": 63}, "SAMPLES_WRONG"),
        ("order.nw2", ORDER, {"out_of_place": 2}, "SAMPLES_WRONG"),
        ("order.nw2", ORDER, {"damaged": 1}, "SAMPLES_WRONG"),
        ("order.nw0", ORDER, {"received": 65}, "SAMPLES_WRONG"),
        ("exception", EXCEPTION, {"exception": None, "carries_text": False}, "EXCEPTION_LOST"),
        ("exception", EXCEPTION, {"exception": "RuntimeError"}, "EXCEPTION_CHANGED"),
        ("exception", EXCEPTION, {"carries_text": False}, "EXCEPTION_CHANGED"),
        ("timeout", TIMEOUT, {"exception": None, "timed_out": False}, "TIMEOUT_IGNORED"),
        ("pinned", PINNED, {"pinned_batches": 7}, "BATCHES_NOT_PINNED"),
        ("pinned", PINNED, {"pinned_batches": 0, "batches": 0}, "BATCHES_NOT_PINNED"),
        ("pinned", PINNED, {"damaged": 1}, "SAMPLES_WRONG"),
    ],
)
def test_each_fault_fails(part: str, observed: dict[str, Any], changed: dict[str, Any], code: str) -> None:
    finding = found(part, observed, **changed)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, code)
    assert finding.rule["gates"] is True
    assert finding.advice


def test_the_message_counts_what_is_wrong() -> None:
    finding = found("order.nw2", ORDER, received=63, missing=1, out_of_place=59)
    assert finding.message == "63 of 64 samples with 2 workers: 1 missing, 59 out of place"


def test_workers_that_bring_nothing_warn_and_never_gate() -> None:
    finding = found("throughput.cpu", SWEEP, best_workers_over_none=1.05)
    assert (finding.verdict, finding.reason_code) == (Verdict.WARN, "WORKERS_BRING_NOTHING")
    assert finding.rule["gates"] is False


def test_one_cpu_cannot_gain() -> None:
    finding = found("throughput.cpu", SWEEP, best_workers_over_none=0.8, effective_cpus=1.0)
    assert finding.verdict is Verdict.PASS


def test_the_recommendation_is_in_the_message() -> None:
    finding = found("throughput.io", SWEEP, workload="io")
    assert finding.message == (
        "958 samples/s when bound by waiting for storage; best of the sweep: num_workers=2, persistent_workers=True"
    )
    assert finding.derived["recommended_num_workers"] == 2


def test_another_number_than_declared_is_said() -> None:
    finding = found("throughput.cpu", SWEEP, declared_num_workers=8)
    assert finding.advice == ("The image declares num_workers=8; this machine did best with 2.",)


def document(noise: dict[str, Any], *, held: bool = True, part: str = "throughput.cpu") -> dict[str, Any]:
    observation = {
        "id": f"C12.{part}",
        "subject": "cpu",
        "status": "ran",
        "reason": None,
        "observed": {**ORDER, **SWEEP},
        "controls": [{"name": "twice_the_work_is_seen", "held": held, "detail": ""}],
        "noise": noise,
    }
    return {"env": {}, "checks": [observation]}


def verdict(tree: dict[str, Any]) -> tuple[Verdict, str | None]:
    (item,) = judge(tree, {}, (), judges())
    return item.finding.verdict, item.finding.reason_code


def test_a_noisy_machine_leaves_throughput_open() -> None:
    assert verdict(document({"gate": "clean"})) == (Verdict.PASS, None)
    assert verdict(document({"gate": "CPU pressure 0.30 above 0.10"})) == (Verdict.INCONCLUSIVE, "NOISY")


def test_noise_does_not_touch_correctness() -> None:
    assert verdict(document({"gate": "CPU pressure 0.30 above 0.10"}, part="order.nw2")) == (Verdict.PASS, None)


def test_a_control_that_did_not_fail_is_an_error_whatever_the_numbers() -> None:
    assert verdict(document({"gate": "clean"}, held=False)) == (Verdict.ERROR, "CONTROL_FAILED")


FOLDER: dict[str, Any] = {
    "files": 1203,
    "bytes": 1_230_000_000,
    "kinds": {".jpg": 1200, "other": 3},
    "lost": 0,
    "whole": True,
}
DATA: dict[str, Any] = {
    "dataset": None,
    "folder": FOLDER,
    "error": None,
    "samples": 1203,
    "tried": 512,
    "broken": 0,
    "exceptions": [],
}


def test_the_users_data_are_told_by_number_size_and_kind() -> None:
    finding = found("data", DATA)
    assert finding.message == (
        "the files of --data: 1203 samples of 1203 files, 1.23 GB (1200 .jpg, 3 other); 512 were tried"
    )
    assert finding.rule["gates"] is False
    assert "of more than 1203 files" in found("data", DATA, folder={**FOLDER, "whole": False}).message
    assert found("data", DATA, dataset="ours:make", folder=None).message.startswith("the Dataset ours:make: 1203")


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"error": "LookupError"}, "DATA_FAILED", "the files of --data could not be opened: LookupError"),
        ({"folder": {**FOLDER, "files": 0}}, "DATA_EMPTY", "has no files"),
        ({"folder": {**FOLDER, "files": 0, "lost": 2}}, "DATA_UNREADABLE", "2 unreadable entries"),
        ({"folder": {**FOLDER, "lost": 2}}, "DATA_UNREADABLE", "2 entries of the folder cannot be read"),
        ({"dataset": "ours:make", "samples": 0}, "DATA_EMPTY", "the Dataset ours:make has no samples"),
        ({"broken": 1, "exceptions": ["OSError"]}, "SAMPLES_BROKEN", "1 raised OSError; the others were measured"),
        ({"broken": 1203, "exceptions": ["OSError"]}, "SAMPLES_BROKEN", "nothing was measured"),
    ],
)
def test_what_is_wrong_with_the_users_data_warns_and_never_fails_the_image(
    changed: dict[str, Any], code: str, words: str
) -> None:
    finding = found("data", DATA, **changed)
    assert (finding.verdict, finding.reason_code, finding.rule["gates"]) == (Verdict.WARN, code, False)
    assert words in finding.message
    assert finding.advice


@pytest.mark.parametrize(("workload", "words"), [("data", "from your files"), ("dataset", "from your Dataset")])
def test_the_recommendation_says_that_it_is_for_the_users_data(workload: str, words: str) -> None:
    finding = found(f"throughput.{workload}", SWEEP, workload=workload)
    assert finding.message.startswith(f"958 samples/s {words}; best of the sweep: num_workers=2")
    assert found("throughput.cpu", SWEEP).message.startswith("958 samples/s when bound by decoding; best of")
