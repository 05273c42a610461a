import json
from importlib import import_module
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.checks.case import Case
from envkit.checks.catalog import judges
from envkit.checks.model import Finding, Verdict
from envkit.checks.observed import MalformedError
from envkit.ground.canonical import digest_of

c14: Any = import_module("envkit.checks.c14_amp.observe")

CPU_TABLE = {
    "mm": "bfloat16",
    "linear": "bfloat16",
    "conv2d": "bfloat16",
    "cross_entropy": "float32",
    "softmax": "bfloat16",
    "layer_norm": "bfloat16",
    "add": "float32",
}
GPU_TABLE = {**CPU_TABLE, "softmax": "float32", "layer_norm": "float32"}
SCALER = {
    "scale_before": 65536.0,
    "scale_after_inf": 32768.0,
    "scale_after_finite": 32768.0,
    "weights_equal_after_inf": True,
    "unscaled_gradient_exact": True,
    "weights_moved_after_finite": True,
}
UNDERFLOW = {"value": 1e-8, "scale": 65536.0, "fp16_scaled": 9.997e-9, "bf16": 1.0012e-8}
ERROR = {
    "network": "cnn",
    "precision": "bf16",
    "loss_rel_err": 8e-5,
    "grad_rel_l2": 5.7e-3,
    "grad_one_minus_cos": 1.6e-5,
    "loss_ratio_fp32": 0.98,
    "loss_ratio_low": 0.98,
}
BENCH = {
    "network": "mlp",
    "precision": "bf16",
    "step_ms": 4.0,
    "time_ratio_to_fp32": 0.5,
    "peak_bytes": None,
    "saved_bytes": 475140,
    "grad_rel_l2": 4.9e-3,
}


def found(part: str, observed: dict[str, Any], subject: str = "cpu", **changed: Any) -> Finding:
    observation = {"id": f"C14.{part}", "subject": subject, "observed": {**observed, **changed}}
    return judges()["C14"](Case({**observation, "noise": {"gate": "clean"}}, {}, {}))


def test_the_expected_dtypes_depend_on_the_device() -> None:
    asked = {"requested": "bfloat16"}
    assert found("dtypes.bf16", {**asked, "table": CPU_TABLE}).verdict is Verdict.PASS
    assert found("dtypes.bf16", {**asked, "table": GPU_TABLE}, "gpu:0").verdict is Verdict.PASS
    finding = found("dtypes.bf16", {**asked, "table": CPU_TABLE}, "gpu:0")
    assert finding.reason_code == "AMP_DTYPES"
    assert "softmax gives bfloat16, not float32" in finding.message


def test_inert_autocast_fails() -> None:
    table = dict.fromkeys(CPU_TABLE, "float32")
    finding = found("dtypes.fp16", {"requested": "float16", "table": table}, "gpu:0")
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "AMP_INERT")
    assert finding.advice == ("Name the device the tensors are on: torch.autocast('cuda', dtype=torch.float16).",)


def test_emulated_bfloat16_warns_and_says_what_to_use() -> None:
    observed = {"capability": "7.5", "bf16_native": False, "bf16_claimed": True, "recommended": "float16"}
    finding = found("dtype_choice", observed, "gpu:0")
    assert (finding.verdict, finding.reason_code) == (Verdict.WARN, "BF16_EMULATED")
    assert finding.rule["gates"] is False
    assert found("dtype_choice", {**observed, "bf16_claimed": False}, "gpu:0").verdict is Verdict.PASS


def test_a_scaler_that_works_passes() -> None:
    assert found("grad_scaler", SCALER).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weights_equal_after_inf": False}, "an infinite gradient reached the weights"),
        ({"scale_after_inf": 65536.0, "scale_after_finite": 65536.0}, "the scale went from 65536 to 65536"),
        ({"unscaled_gradient_exact": False}, "the unscaled gradient is not exact"),
        ({"weights_moved_after_finite": False}, "a finite gradient moved no weight"),
        ({"scale_after_finite": 16384.0}, "a finite step changed the scale"),
    ],
)
def test_each_property_of_the_scaler_counts(changed: dict[str, Any], words: str) -> None:
    finding = found("grad_scaler", SCALER, **changed)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "GRAD_SCALER")
    assert words in finding.message


@pytest.mark.parametrize("changed", [{"fp16_scaled": 0.0}, {"bf16": 0.0}, {"fp16_scaled": 1.01e-8}])
def test_a_value_that_does_not_survive_fails(changed: dict[str, Any]) -> None:
    assert found("underflow", UNDERFLOW).verdict is Verdict.PASS
    assert found("underflow", UNDERFLOW, **changed).reason_code == "UNDERFLOW"


def test_small_errors_pass_and_carry_their_rule() -> None:
    finding = found("error.cnn.bf16", ERROR)
    assert finding.verdict is Verdict.PASS
    assert finding.rule["gates"] is True
    assert finding.metric is not None
    assert finding.metric["value"] == 5.7e-3


@pytest.mark.parametrize(
    "changed",
    [
        {"loss_rel_err": 9e-3},
        {"precision": "fp16", "grad_rel_l2": 1e-3, "loss_rel_err": 1.1e-3},
        {"grad_rel_l2": 6e-2},
        {"grad_one_minus_cos": 2e-3},
        {"loss_ratio_low": 1.02},
        {"loss_ratio_fp32": 1.0},
        {"precision": "fp16", "grad_rel_l2": 3e-2},
    ],
)
def test_each_error_has_its_line(changed: dict[str, Any]) -> None:
    finding = found("error.cnn.bf16", ERROR, **changed)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "AMP_ERROR")


def test_float16_is_held_to_less_than_bfloat16() -> None:
    assert found("error.cnn.bf16", ERROR, grad_rel_l2=3e-2).verdict is Verdict.PASS


def test_a_loss_that_is_not_finite_fails() -> None:
    finding = found("error.cnn.bf16", ERROR, loss_rel_err=None)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "NONFINITE_RESULT")


def test_an_unknown_precision_has_no_line() -> None:
    with pytest.raises(LookupError):
        found("error.cnn.fp8", ERROR, precision="fp8")


def test_the_benchmark_informs() -> None:
    finding = found("bench.mlp.bf16", BENCH)
    assert finding.verdict is Verdict.PASS
    assert finding.rule["gates"] is False
    assert finding.message == (
        "mlp bf16: 4.00 ms a step, 2.00 times the speed of strict float32, gradient off by 4.9e-03, "
        "0.5 MB saved for backward"
    )


def test_a_slow_step_never_fails() -> None:
    assert found("bench.mlp.bf16", BENCH, step_ms=400.0, time_ratio_to_fp32=50.0).verdict is Verdict.PASS


def test_the_benchmark_on_a_busy_machine_is_open() -> None:
    observation = {"id": "C14.bench.mlp.bf16", "subject": "cpu", "observed": BENCH, "noise": {"gate": "busy"}}
    assert judges()["C14"](Case(observation, {}, {})).verdict is Verdict.INCONCLUSIVE


def test_a_missing_number_is_malformed() -> None:
    with pytest.raises(MalformedError):
        found("underflow", {"value": 1e-8})


def test_the_payload_plants_its_fault_at_the_widest_line() -> None:
    assert thresholds.load().row("C14.gradient").number("bf16") == c14.GRAD_FAULT_LINE


def test_a_table_with_one_line_for_both_precisions_still_judges() -> None:
    """Records keep the table that judged them; those from before the line per precision must stay judgeable."""
    tree = json.loads(json.dumps(thresholds.shipped().to_json()))
    tree["rules"]["C14.loss"]["values"] = {"fail_above": 1e-3}
    tree["sha256"] = digest_of({key: value for key, value in tree.items() if key != "sha256"})
    with thresholds.using(thresholds.of_record(tree)):
        assert found("error.cnn.bf16", ERROR, loss_rel_err=1.1e-3).reason_code == "AMP_ERROR"
        assert found("error.cnn.bf16", ERROR).verdict is Verdict.PASS
