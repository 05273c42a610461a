from typing import Any

import pytest

from tests.support.verdicts import FAIL, PASS, WARN, found, said

GEMM = {"dtype": "float32", "size": 512, "repeats": 50, "repeats_different": 0, "elements_different": 0, "nonfinite": 0}
TRAINING = {"network": "mlp", "steps": 20, "losses_different": 0, "weights_different": 0}


def test_equal_bits_pass() -> None:
    finding = found("C07.gemm.fp32", GEMM)
    assert (finding.verdict, finding.message) == (PASS, "50 products of 512 x 512 are bit-identical")
    assert said("C07.training", TRAINING) == (PASS, None)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"repeats_different": 1, "elements_different": 1}, "NONDETERMINISTIC_GEMM"),
        ({"elements_different": 7}, "NONDETERMINISTIC_GEMM"),
        ({"elements_different": 7, "nonfinite": 3}, "NONDETERMINISTIC_GEMM"),
        ({"nonfinite": 3}, "NONFINITE_RESULT"),
    ],
)
def test_each_fault_fails(changed: dict[str, Any], code: str) -> None:
    finding = found("C07.gemm.bf16", {**GEMM, **changed})
    assert (finding.verdict, finding.reason_code) == (FAIL, code)
    assert finding.rule["gates"] is (code == "NONDETERMINISTIC_GEMM"), "only a difference is the machine's fault"


@pytest.mark.parametrize("key", ["losses_different", "weights_different"])
def test_a_training_that_differs_warns(key: str) -> None:
    assert said("C07.training", {**TRAINING, key: 1}) == (WARN, "NONDETERMINISTIC_TRAINING")
