from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Finding, Verdict
from envkit.verify.exitcode import summarize
from envkit.verify.judge import judge
from envkit.verify.record import Record, RunFacts, build_record, fingerprint, schema
from envkit.verify.spec import spec_of_plan
from tests.support.judging import SELECTED, document, observation, passing, plan
from tests.support.schema import faults

RUN = RunFacts(
    id="5f0c0d3e",
    started="2026-01-01T00:00:00Z",
    duration_s=1.23456,
    tier="quick",
    suite_sha256="a" * 64,
    argv=("envkit", "verify"),
    runner="docker",
    gpus=None,
    selected=("C04", "C05"),
    exit_code=0,
    stderr_tail=(),
)
SUBJECT: dict[str, Any] = {
    "image": "x",
    "id": None,
    "tags": [],
    "plan": None,
    "name": None,
    "architecture": None,
    "size_bytes": None,
    "promise": None,
}


def record(*checks: dict[str, Any], rule: Any = passing, without_document: bool = False) -> Record:
    spec = {**spec_of_plan(plan(cuda=None)), "nonce": "secret"}
    made = None if without_document else document(*checks)
    judged = judge(made, spec, SELECTED, {"C04": passing, "C05": rule})
    summary = summarize(judged, spec)
    return build_record(run=RUN, subject=SUBJECT, spec=spec, document=made, judged=judged, summary=summary)


def test_a_record_keeps_to_its_schema() -> None:
    samples = {"unit": "ms", "n": 2, "values": [1.0, 2.0], "clock": "perf_counter"}
    made = record(observation("C04", "gpu:0", "skip"), observation("C05.fp32", samples=samples))
    assert faults(made.tree, schema(), closed=True) == []
    assert faults(json.loads(made.to_bytes()), schema(), closed=True) == []


def test_a_record_of_a_payload_that_died_keeps_to_it_too() -> None:
    made = record(without_document=True)
    assert faults(made.tree, schema(), closed=True) == []
    assert made.tree["env"]["fingerprint"] == {"hw": None, "sw": None, "policy": None}
    assert (made.verdict, made.exit_code) == ("ERROR", 6)


def test_the_schema_notices_what_is_wrong() -> None:
    tree = json.loads(record(observation("C05")).to_bytes())
    tree["summary"]["verdict"] = "FINE"
    tree["checks"][0]["metric"] = {"name": "x", "value": "1", "unit": "s", "better": "lower"}
    del tree["run"]["argv"]
    tree["run"]["rack"] = 7
    assert faults(tree, schema(), closed=True) == [
        "$.run: no argv",
        "$.run: rack is unknown",
        "$.checks[0].metric.value: '1' is not a ['number', 'null']",
        "$.summary.verdict: 'FINE' is not one of ['PASS', 'WARN', 'FAIL', 'INCONCLUSIVE', 'ERROR', 'NOT_VERIFIED']",
    ]


def test_numbers_stay_numbers_and_what_json_lacks_becomes_null() -> None:
    def rule(*_: object) -> Finding:
        metric = {"name": "error", "value": float("nan"), "unit": "1", "better": "lower"}
        return Finding(Verdict.PASS, "m", rule={"type": "band", "high": float("inf"), "low": 1e-7}, metric=metric)

    check = record(observation("C05"), rule=rule).tree["checks"][1]
    assert check["rule"] == {"type": "band", "high": None, "low": 1e-7}
    assert check["metric"]["value"] is None
    assert (check["verdict"], type(check["verdict"])) == ("PASS", str)


def test_half_a_surrogate_pair_of_an_image_is_written_as_a_question_mark() -> None:
    made = record(observation("C05.fp32", observed={"name\udc80": "a\ud800b"}))
    assert made.tree["checks"][-1]["observed"] == {"name?": "a?b"}
    assert b"a?b" in made.to_bytes()


def test_samples_are_capped_and_the_nonce_is_left_out() -> None:
    many = {"unit": "ms", "n": 300, "values": [1.0] * 300}
    tree = record(observation("C05", samples=many)).tree
    assert len(tree["checks"][1]["samples"]["values"]) == 200
    assert b"secret" not in Record(tree).to_bytes()


def test_the_rule_and_its_controls_stand_beside_the_verdict() -> None:
    check = record(observation("C05")).tree["checks"][1]
    assert check["rule"] == {"type": "max_rel_err"}
    assert check["controls"] == [{"name": "planted", "held": True, "detail": ""}]
    assert check["reason_code"] is None


def test_the_spec_has_a_digest_that_changes_with_a_promise() -> None:
    one = record(observation("C05")).tree["subject"]["spec"]
    assert len(one["sha256"]) == 64
    assert one["torch"] == "2.7.1"


ENV = {
    "host": {"cpu_model": "A", "effective": 2.0, "kernel": "6.1"},
    "gpu": [{"name": "G", "cc": "9.0", "link": {"gen_max": 5, "width_max": 16, "gen": 5}}],
    "sw": {"torch": "2.7.1"},
    "flags": {"deterministic": False},
}


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"host": {**ENV["host"], "kernel": "6.9"}}, set()),  # type: ignore[dict-item]
        ({"host": {**ENV["host"], "effective": 1.0}}, {"hw"}),  # type: ignore[dict-item]
        ({"gpu": [{"name": "G", "cc": "9.0", "link": {"gen_max": 5, "width_max": 16, "gen": 1}}]}, set()),
        ({"gpu": [{"name": "G", "cc": "9.0", "link": {"gen_max": 4, "width_max": 16}}]}, {"hw"}),
        ({"gpu": [{"name": "G", "cc": "9.0"}]}, {"hw"}),
        ({"gpu": [{**ENV["gpu"][0], "sms": 14}]}, {"hw"}),  # type: ignore[index]
        ({"gpu": [{**ENV["gpu"][0], "torch_mem_mib": 5120}]}, {"hw"}),  # type: ignore[index]
        ({"flags": {"deterministic": False, "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}}, set()),
        ({"flags": {"deterministic": False, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, {"policy"}),
        ({"sw": {"torch": "2.8.0"}}, {"sw"}),
        ({"flags": {"deterministic": True}}, {"policy"}),
    ],
)
def test_each_fingerprint_moves_with_its_own_subject_alone(change: dict[str, Any], moved: set[str]) -> None:
    before = fingerprint(ENV, tier="quick", suite_sha256="a")
    after = fingerprint({**ENV, **change}, tier="quick", suite_sha256="a")
    assert {key for key in before if before[key] != after[key]} == moved


def test_a_policy_is_its_tier_and_suite() -> None:
    policies = {fingerprint(ENV, tier=tier, suite_sha256=sha)["policy"] for tier in ("quick", "deep") for sha in "ab"}
    assert len(policies) == 4


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    made = record(observation("C05"))
    path = tmp_path / "deep" / "record.json"
    made.write(path)
    assert json.loads(path.read_bytes()) == made.tree
    blocked = tmp_path / "file" / "record.json"
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="file"):
        made.write(blocked)
    assert (tmp_path / "file").read_text() == "old"
    assert [item.name for item in path.parent.iterdir()] == ["record.json"]
