from typing import Any

import pytest

from envkit.checks.catalog import machine_codes
from tests.support.verdicts import CLEAN, ERROR, FAIL, INCONCLUSIVE, NOISY, PASS, SKIP, WARN, found, said

GEMM = {
    "precision": "fp16",
    "size": 4096,
    "capability": "8.0",
    "tflops": 275.4,
    "tflops_fp32": 18.36,
    "over_fp32": 15.0,
    "over_tf32": 2.16,
    "output_dtype": "float16",
}


RESULT = {"fp16": "float16", "bf16": "bfloat16", "tf32": "float32"}


def gemm(**changed: Any) -> tuple[str, Any]:
    precision = changed.get("precision", "fp16")
    return said(f"C15.gemm.{precision}", {**GEMM, "output_dtype": RESULT[precision], **changed}, noise=CLEAN)


def test_tensor_cores_in_use_pass_and_gate() -> None:
    finding = found("C15.gemm.fp16", GEMM, noise=CLEAN)
    assert (finding.verdict, finding.rule["gates"]) == (PASS, True)
    assert finding.message == (
        "fp16 products run 15.00 times the speed of strict float32 (275 against 18.4 TFLOP/s, 2.16 times TF32)"
    )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"over_fp32": 1.1}, (FAIL, "TENSOR_CORES_UNUSED")),
        ({"over_fp32": 1.1, "precision": "bf16"}, (FAIL, "TENSOR_CORES_UNUSED")),
        ({"over_fp32": 8.0}, (WARN, "TENSOR_CORES_SLOW")),
        ({"over_fp32": 11.0}, (PASS, None)),
        ({"over_fp32": 2.0, "capability": "8.9"}, (PASS, None)),
        ({"over_fp32": 2.0, "capability": "7.5"}, (WARN, "TENSOR_CORES_SLOW")),
        ({"over_fp32": 1.0, "capability": "6.1"}, (PASS, None)),
        ({"over_fp32": 0.4, "capability": None, "precision": "bf16"}, (PASS, None)),
        ({"over_fp32": 1.2, "precision": "tf32"}, (PASS, None)),
        ({"over_fp32": 1.1, "capability": "unknown"}, (ERROR, "MALFORMED_OBSERVATION")),
        ({"output_dtype": "float32"}, (FAIL, "PRECISION_NOT_USED")),
        ({"output_dtype": "float32", "precision": "bf16", "capability": None}, (FAIL, "PRECISION_NOT_USED")),
        ({"output_dtype": "float16", "precision": "tf32"}, (FAIL, "PRECISION_NOT_USED")),
        ({"output_dtype": None}, (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_the_gain_decides_where_there_are_tensor_cores(changed: dict[str, Any], expected: tuple[Any, Any]) -> None:
    assert gemm(**changed) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GeForce GTX 1660 SUPER", (SKIP, "NO_TENSOR_CORES")),
        ("NVIDIA T400 4GB", (SKIP, "NO_TENSOR_CORES")),
        ("NVIDIA T1000 8GB", (SKIP, "NO_TENSOR_CORES")),
        ("Quadro T2000", (SKIP, "NO_TENSOR_CORES")),
        ("NVIDIA GeForce MX450", (SKIP, "NO_TENSOR_CORES")),
        ("Tesla T4", (FAIL, "TENSOR_CORES_UNUSED")),
        ("NVIDIA GeForce RTX 2080 Ti", (FAIL, "TENSOR_CORES_UNUSED")),
        ("Quadro RTX 4000", (FAIL, "TENSOR_CORES_UNUSED")),
        (None, (FAIL, "TENSOR_CORES_UNUSED")),
    ],
)
def test_the_turing_chips_without_tensor_cores_are_told_by_name(name: str | None, expected: tuple[Any, Any]) -> None:
    assert gemm(over_fp32=1.1, capability="7.5", name=name) == expected
    assert gemm(over_fp32=1.1, capability="8.6", name=name) == (FAIL, "TENSOR_CORES_UNUSED")


def test_only_float16_on_a_gpu_gates() -> None:
    for changed in ({"precision": "bf16", "over_fp32": 1.1}, {"capability": None}, {"precision": "tf32"}):
        precision = str(changed.get("precision", "fp16"))
        observed = {**GEMM, "output_dtype": RESULT[precision], **changed}
        finding = found(f"C15.gemm.{precision}", observed, noise=CLEAN)
        assert finding.reason_code != "PRECISION_NOT_USED"
        assert finding.rule["gates"] is False


def test_a_busy_machine_leaves_it_open() -> None:
    assert said("C15.gemm.fp16", {**GEMM, "over_fp32": 1.1}, noise=NOISY) == (INCONCLUSIVE, "NOISY")


H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "multiprocessors": 132, "max_sm_mhz": 1980}


@pytest.mark.parametrize(
    ("rate", "expected"), [(700.0, (PASS, None)), (270.0, (PASS, None)), (82.0, (FAIL, "PRODUCTS_BELOW_FLOOR"))]
)
def test_a_gpu_that_is_slow_at_everything_is_noticed(rate: float, expected: tuple[Any, Any]) -> None:
    changed = {"capability": "9.0", "tflops": rate, "tflops_fp32": rate / 12, "over_fp32": 12.0, "limits": H100}
    assert gemm(**changed) == expected
    assert gemm(**changed, precision="bf16") == expected
    assert gemm(**{**changed, "limits": {**H100, "max_sm_mhz": None}}) == (PASS, None)
    assert "PRODUCTS_BELOW_FLOOR" in machine_codes()


def test_a_power_limit_is_named_with_the_share_of_the_clock() -> None:
    limits = {"name": "NVIDIA H200", "capability": "9.0", "multiprocessors": 132, "max_sm_mhz": 1980}
    capped = {"sm_mhz": 1425, "events": ["sw_power_cap"]}
    observed = {**GEMM, "capability": "9.0", "tflops": 643.0, "limits": limits}
    message = found("C15.gemm.fp16", {**observed, "health": capped}, noise=CLEAN).message
    assert message.endswith("of what the GPU's clock allows: its power limit holds the clock at 1425 of 1980 MHz")
    assert found("C15.gemm.fp16", {**observed, "health": None}, noise=CLEAN).message.endswith("clock allows")
