from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.checks import thresholds
from envkit.checks.case import Case
from envkit.checks.catalog import judges
from envkit.checks.model import Finding, Verdict
from envkit.checks.observed import MalformedError
from envkit.checks.precision_bands import cluster

precision: Any = import_module("envkit.smoke.precision")

EXACT_MAX = {"ieee": 3.2e-7, "tf32": 1.0e-3, "fp16": 5.1e-4, "bf16": 3.6e-3}


def errors(rel_fro: float | None, rel_max: float | None = None, nonfinite: int = 0) -> dict[str, Any]:
    return {"rel_fro": rel_fro, "rel_max": rel_max, "nonfinite": nonfinite}


def gemm(promise: str, rel_fro: float, /, rel_max: float | None = None, **changed: Any) -> Finding:
    element = EXACT_MAX[promise] if rel_max is None else rel_max
    observed = {"promise": promise, "sizes": {"512": errors(rel_fro, element)}, "environment": {}, **changed}
    return judges()["C05"](Case({"id": f"C05.{promise}", "observed": observed}, {}, {}))


@pytest.mark.parametrize(
    ("promise", "rel_fro"),
    [
        ("ieee", 2.0e-7),
        ("ieee", 2.5e-7),
        ("tf32", 2.9e-4),
        ("tf32", 7.7e-4),
        ("tf32", 1.8e-4),
        ("tf32", 5.0e-5),
        ("tf32", 2.3e-7),
        ("fp16", 3.6e-4),
        ("fp16", 7.2e-4),
        ("bf16", 2.9e-3),
        ("bf16", 5.8e-3),
    ],
)
def test_what_the_precision_gives_passes(promise: str, rel_fro: float) -> None:
    assert gemm(promise, rel_fro).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("promise", "rel_fro", "verdict", "code"),
    [
        ("ieee", 2.9e-4, Verdict.FAIL, "PRECISION_OVERRIDDEN"),
        ("ieee", 2.9e-3, Verdict.FAIL, "PRECISION_OVERRIDDEN"),
        ("ieee", 2.3e-3, Verdict.FAIL, "PRECISION_OVERRIDDEN"),
        ("ieee", 5.0e-5, Verdict.WARN, "PRECISION_UNCLEAR"),
        ("tf32", 2.9e-3, Verdict.FAIL, "PRECISION_BELOW_PROMISE"),
        ("fp16", 2.9e-3, Verdict.FAIL, "PRECISION_BELOW_PROMISE"),
        ("fp16", 2.0e-3, Verdict.WARN, "PRECISION_UNCLEAR"),
        ("bf16", 3.6e-4, Verdict.WARN, "PRECISION_ABOVE_PROMISE"),
        ("bf16", 1.2e-2, Verdict.WARN, "PRECISION_UNCLEAR"),
        ("ieee", 1.2e-1, Verdict.FAIL, "WRONG_RESULT"),
        ("tf32", 1.2e-1, Verdict.FAIL, "WRONG_RESULT"),
        ("fp16", 1.2e-1, Verdict.FAIL, "WRONG_RESULT"),
        ("bf16", 1.1e-1, Verdict.FAIL, "WRONG_RESULT"),
    ],
)
def test_another_precision_than_promised(promise: str, rel_fro: float, verdict: Verdict, code: str) -> None:
    finding = gemm(promise, rel_fro)
    assert (finding.verdict, finding.reason_code) == (verdict, code)
    assert finding.advice


@pytest.mark.parametrize("promise", EXACT_MAX)
def test_one_element_that_the_norm_hides(promise: str) -> None:
    center = {"ieee": 2.3e-7, "tf32": 2.9e-4, "fp16": 3.6e-4, "bf16": 2.9e-3}[promise]
    finding = gemm(promise, center, 0.13)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "ELEMENT_ERROR")
    assert finding.rule["type"] == "max_rel_err"


def test_a_spike_in_a_coarse_result_is_an_element_error() -> None:
    assert gemm("ieee", 5.0e-5, 1.2e-4).reason_code == "PRECISION_UNCLEAR"
    assert gemm("ieee", 5.0e-5, 0.2).reason_code == "ELEMENT_ERROR"


def test_advice_names_the_variable_that_overrides() -> None:
    finding = gemm("ieee", 2.9e-4, environment={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"})
    assert finding.advice[0] == "Remove TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 from the image's environment."


def test_the_worst_size_decides() -> None:
    sizes = {"512": errors(2.3e-7, 3e-7), "1024": errors(1.2e-1, 0.2)}
    finding = gemm("ieee", 0.0, sizes=sizes)
    assert finding.reason_code == "WRONG_RESULT"
    assert finding.message.startswith("1024: ")


def test_not_a_number_is_a_failure() -> None:
    finding = gemm("fp16", 0.0, sizes={"512": errors(None, None, 3)})
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "NONFINITE_RESULT")
    assert finding.message == "512: 3 elements are not finite"


@pytest.mark.parametrize("changed", [{"promise": "fp8"}, {"sizes": {}}, {"sizes": {"512": errors(None, None, 0)}}])
def test_a_malformed_observation_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        gemm("ieee", 2e-7, **changed)


def test_bands_do_not_touch() -> None:
    for name in ("C05.bands", "C06.bands"):
        row = thresholds.load().row(name)
        edges = [row.number(key) for key in ("full_max", "half_min", "half_max", "bfloat_min", "bfloat_max")]
        edges.append(row.number("fault_above"))
        assert all(low * 2 < high for low, high in pairwise(edges))


@given(st.floats(min_value=1e-9, max_value=1.0))
def test_every_error_is_in_one_cluster_at_most(error: float) -> None:
    bands = thresholds.load().row("C05.bands")
    inside = (
        error < bands.number("full_max"),
        bands.number("half_min") <= error <= bands.number("half_max"),
        bands.number("bfloat_min") <= error <= bands.number("bfloat_max"),
    )
    assert sum(inside) == (cluster(error, bands) is not None)


def test_the_payload_plants_its_faults_at_the_same_lines() -> None:
    rows = thresholds.load()
    assert rows.row("C05.bands").number("fault_above") == precision.FAULT_LINE
    assert rows.row("C05.bands").number("full_max") == precision.FULL_PRECISION_LINE
    assert dict(rows.row("C05.element").values) == precision.ELEMENT_LINES


def conv(promise: str = "ieee", spec: dict[str, Any] | None = None, **changed: Any) -> Finding:
    parts = {
        "forward": errors(2.2e-7, 4.5e-7),
        "grad_input": errors(2.2e-7, 5.1e-7),
        "grad_weight": errors(1.1e-6, 1.6e-6),
    }
    observed = {
        "promise": promise,
        "library": "cudnn",
        "library_available": True,
        "environment": {},
        "cases": {"contiguous.library_on": {**parts, **changed.pop("parts", {})}},
        **changed,
    }
    return judges()["C06"](Case({"id": f"C06.{promise}", "observed": observed}, spec or {}, {}))


def test_a_weight_gradient_sums_more_terms() -> None:
    assert conv(parts={"grad_weight": errors(4e-6, 6e-6)}).verdict is Verdict.PASS
    assert conv(parts={"forward": errors(4e-6, 3e-6)}).reason_code == "PRECISION_UNCLEAR"


def test_tf32_by_default_is_noticed_in_a_convolution() -> None:
    finding = conv(parts={"grad_input": errors(2.9e-4, 1e-3)})
    assert finding.reason_code == "PRECISION_OVERRIDDEN"
    assert "contiguous.library_on grad_input" in finding.message


WINOGRAD = {"ieee": (1.1e-6, 3.7e-6), "fp16": (3.2e-3, 1.1e-2), "tf32": (3.2e-3, 1.1e-2), "bf16": (2.5e-2, 0.09)}


def fast(promise: str, rel_fro: float, rel_max: float) -> Finding:
    """The finding on a stride-1 case with this error in all its parts, beside a fingerprint that passes."""
    own = {"ieee": 2.2e-7, "tf32": 2.9e-4, "fp16": 3.6e-4, "bf16": 2.9e-3}[promise]
    good = {part: errors(own, own * 2) for part in ("forward", "grad_input", "grad_weight")}
    parts = {part: errors(rel_fro, rel_max) for part in good}
    return conv(promise, cases={"contiguous.library_on": good, "stride1.library_on": parts})


@pytest.mark.parametrize("promise", WINOGRAD)
def test_a_fast_algorithm_of_a_convolution_with_stride_1_is_allowed(promise: str) -> None:
    """F(4x4, 3x3) failed float32 with ELEMENT_ERROR and float16 with PRECISION_BELOW_PROMISE, on healthy GPUs."""
    assert fast(promise, *WINOGRAD[promise]).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("promise", "rel_fro", "rel_max", "code"),
    [
        ("ieee", 2.9e-4, 1e-3, "PRECISION_OVERRIDDEN"),
        ("ieee", 2.3e-7, 1e-3, "ELEMENT_ERROR"),
        ("ieee", 8.3e-2, 0.3, "WRONG_RESULT"),
        ("fp16", 8.0e-3, 3e-2, "PRECISION_BELOW_PROMISE"),
        ("fp16", 3.6e-4, 0.2, "ELEMENT_ERROR"),
        ("bf16", 8.3e-2, 0.3, "WRONG_RESULT"),
    ],
)
def test_its_wider_lines_still_catch_what_no_algorithm_explains(
    promise: str, rel_fro: float, rel_max: float, code: str
) -> None:
    finding = fast(promise, rel_fro, rel_max)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, code)
    assert finding.message.startswith("stride1.library_on")


def test_a_missing_part_is_malformed() -> None:
    with pytest.raises(MalformedError):
        conv(cases={"contiguous.library_on": {"forward": errors(2e-7, 3e-7)}})


def test_cudnn_that_was_promised_has_to_be_there() -> None:
    finding = conv(spec={"cudnn": "9.10.2"}, library_available=False)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "CUDNN_UNAVAILABLE")
    assert conv(spec={"cudnn": None}, library_available=False).verdict is Verdict.PASS
