from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.catalog import machine_codes
from tests.support.verdicts import ERROR, FAIL, INCONCLUSIVE, PASS, WARN, found, said

USUAL = {"h2d_gb_per_s": 54.0, "d2h_gb_per_s": 53.0, "tflops": 700.0}
SOUND: dict[str, Any] = {
    "outcome": "answered",
    "text": None,
    "others_answered": 7,
    "alike": 7,
    "alike_median": USUAL,
    "name": "NVIDIA H100 80GB HBM3",
    "capability": "9.0",
    "multiprocessors": 132,
    "max_sm_mhz": 1980,
    "kernel": {"total": 100, "expected": 100, "noticed": True},
    "copy": {"bytes": 1 << 28, "exact": True, "near": True},
    "product": {"dtype": "bfloat16"},
    "health": {"events": ["sw_power_cap"]},
    "rates": USUAL,
}


def gpu(**changed: Any) -> tuple[str, Any]:
    return said("C26.gpu", {**SOUND, **changed}, subject="gpu:3")


def test_a_gpu_like_its_siblings_passes() -> None:
    finding = found("C26.gpu", SOUND, subject="gpu:3")
    assert (finding.verdict, finding.rule["gates"]) == (PASS, True)
    plain = "NVIDIA H100 80GB HBM3: exact; 54.0 GB/s to it, 53.0 from it, 700 TFLOP/s"
    assert finding.message == f"{plain}, 0.65 of what its top clock allows: its power limit holds the clock"
    assert found("C26.gpu", {**SOUND, "health": {"events": []}}, subject="gpu:3").message == plain
    assert gpu(alike=0, alike_median={}) == (PASS, None)
    assert gpu(health=None, max_sm_mhz=None) == (PASS, None)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"kernel": {"total": 101, "expected": 100}}, "GPU_COMPUTES_WRONG"),
        ({"copy": {"bytes": 1 << 28, "exact": False, "near": True}}, "COPY_WRONG"),
        ({"rates": {**USUAL, "tflops": 340.0}}, "SLOWER_THAN_SIBLINGS"),
        ({"rates": {**USUAL, "h2d_gb_per_s": 6.0}}, "SLOWER_THAN_SIBLINGS"),
        ({"rates": {**USUAL, "d2h_gb_per_s": 6.0}}, "SLOWER_THAN_SIBLINGS"),
        # All of them are as slow: only the chip's own numbers show it.
        ({"rates": {**USUAL, "tflops": 80.0}, "alike_median": {**USUAL, "tflops": 80.0}}, "PRODUCTS_BELOW_FLOOR"),
        ({"outcome": "timeout", "text": "no answer in 24 s"}, "GPU_HANGS"),
        ({"outcome": "failed", "text": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}, "GPU_FAILS"),
        ({"outcome": "failed", "text": "CUDA out of memory. Tried to allocate"}, "GPU_OUT_OF_MEMORY"),
        ({"outcome": "failed", "text": "CUDA-capable device(s) is/are busy or unavailable"}, "GPU_EXCLUSIVE"),
    ],
)
def test_a_gpu_that_errs_or_falls_behind_is_a_fault_of_the_machine(changed: dict[str, Any], code: str) -> None:
    assert gpu(**changed) == (FAIL, code)
    assert code in machine_codes()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"rates": {**USUAL, "tflops": 500.0}}, (WARN, "SIBLINGS_DIFFER")),
        # Nobody knows which CPUs are next to it, so the socket may be the cause.
        (
            {"rates": {**USUAL, "h2d_gb_per_s": 6.0}, "copy": {"bytes": 1, "exact": True, "near": False}},
            (WARN, "SIBLINGS_DIFFER"),
        ),
        ({"outcome": "failed", "text": "CUDA error: no kernel image is available"}, (WARN, "NO_KERNEL_IMAGE")),
        ({"outcome": "timeout", "text": "no answer", "others_answered": 0}, (INCONCLUSIVE, "GPUS_SLOW_TO_START")),
        ({"health": {"events": ["hw_thermal_slowdown"]}}, (WARN, "CLOCK_SLOWED")),
        ({"rates": {**USUAL, "tflops": 80.0}, "busy_before": 60}, (INCONCLUSIVE, "NOISY")),
        ({"rates": {**USUAL, "tflops": 80.0}, "busy_before": 1}, (FAIL, "PRODUCTS_BELOW_FLOOR")),
        ({"rates": {}}, (ERROR, "MALFORMED_OBSERVATION")),
        ({"kernel": None}, (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_what_may_have_another_cause_does_not_fail(changed: dict[str, Any], expected: tuple[Any, Any]) -> None:
    assert gpu(**changed) == expected


def test_the_gpus_that_were_not_measured_are_named() -> None:
    hidden = {"gpu": "GPU-1", "name": "NVIDIA H100", "why": "not visible to torch"}
    seven: dict[str, Any] = {"measured": ["gpu:0"], "not_measured": [hidden] * 7, "visible_devices": None}
    finding = found("C26.coverage", seven)
    assert (finding.verdict, finding.reason_code) == (WARN, "GPUS_NOT_MEASURED")
    assert finding.message.startswith("measured 1 of 8 GPUs; not measured: GPU-1 NVIDIA H100: not visible to torch")
    chosen = found("C26.coverage", {**seven, "visible_devices": "0"})
    assert chosen.verdict == PASS
    assert chosen.message.endswith("(CUDA_VISIBLE_DEVICES=0)")
    assert found("C26.coverage", {**seven, "not_measured": []}).message == "measured 1 of 1 GPUs"
    silent = [{"gpu": "gpu:5", "name": "NVIDIA H100", "why": "it gave no answer in time"}]
    assert said("C26.coverage", {**seven, "not_measured": silent, "visible_devices": "0"})[0] == WARN
    assert said("C26.coverage", {**seven, "not_measured": None})[0] == ERROR


def test_a_power_limit_is_named_where_products_are_too_slow() -> None:
    """NVML reports it while the products run; without it nobody knows where a third of the rate went."""
    health = {"sm_mhz": 345, "events": ["sw_power_cap"]}
    finding = found("C26.gpu", {**SOUND, "rates": {**USUAL, "tflops": 80.0}, "health": health}, subject="gpu:3")
    assert finding.reason_code == "PRODUCTS_BELOW_FLOOR"
    assert finding.message.endswith("; its power limit holds the clock at 345 of 1980 MHz")
    slow = {**SOUND, "rates": {**USUAL, "tflops": 340.0}, "health": health}
    assert found("C26.gpu", slow, subject="gpu:3").message.endswith("holds the clock at 345 of 1980 MHz")
    copies = {**SOUND, "rates": {**USUAL, "h2d_gb_per_s": 6.0}, "health": health}
    assert "power limit" not in found("C26.gpu", copies, subject="gpu:3").message
