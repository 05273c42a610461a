import pytest

from tests.support.verdicts import PASS, WARN, found, said

MEMORY = {
    "batch": 8192,
    "dtype": "bfloat16",
    "saved_bytes_fp32": 67436548,
    "saved_bytes_amp": 40194052,
    "peak_bytes_fp32": None,
    "peak_bytes_amp": None,
    "largest": True,
}


def test_memory_is_held_to_a_line_where_activations_rule() -> None:
    finding = found("C16.batch8192", MEMORY)
    assert (finding.verdict, finding.rule["gates"]) == (PASS, False)
    assert finding.metric is not None
    assert finding.metric["value"] == pytest.approx(0.596, abs=1e-3)
    assert said("C16.batch8192", {**MEMORY, "saved_bytes_amp": 60000000}) == (WARN, "AMP_SAVES_LITTLE")


def test_a_small_batch_is_explained_and_not_judged() -> None:
    few = {**MEMORY, "batch": 8, "largest": False, "saved_bytes_fp32": 65860, "saved_bytes_amp": 2154820}
    finding = found("C16.batch8", few)
    assert finding.verdict is PASS
    assert finding.message.endswith("the low-precision copies of the weights cost more than is saved")


def test_the_peak_is_told_where_a_gpu_has_one() -> None:
    finding = found("C16.batch8192", {**MEMORY, "peak_bytes_fp32": 100e6, "peak_bytes_amp": 60e6})
    assert finding.derived["peak_ratio"] == pytest.approx(0.6)
    assert "peak of a step 60 against 100 MB" in finding.message
