from typing import Any

import pytest

from envkit.checks.case import Case
from envkit.checks.catalog import judges
from envkit.checks.model import Finding, Verdict

OBSERVED = {
    "saved_tensors": 0,
    "saved_bytes": 0,
    "saved_bytes_with_grad": 1896832,
    "requires_grad": False,
    "relative_difference": 0.0,
}


def found(**changed: Any) -> Finding:
    return judges()["C17"](Case({"id": "C17.no_grad", "observed": {**OBSERVED, **changed}}, {}, {}))


def test_nothing_kept_passes() -> None:
    finding = found()
    assert (finding.verdict, finding.message) == (Verdict.PASS, "nothing kept; 1.9 MB with gradients on")


def test_a_library_that_does_not_repeat_itself_is_the_finding() -> None:
    """cuDNN 9.23.1 on sm_86 gave ANSWERS_DIFFER, a failure of the image with the wrong cause."""
    finding = found(relative_difference=1e-3, repeated_difference=2e-3)
    assert (finding.verdict, finding.reason_code) == (Verdict.WARN, "CONV_NOT_REPEATABLE")
    assert found(relative_difference=1e-3, repeated_difference=0.0).reason_code == "ANSWERS_DIFFER"
    assert found(saved_tensors=1, repeated_difference=2e-3).reason_code == "TENSORS_SAVED"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"saved_tensors": 1}, "TENSORS_SAVED"),
        ({"requires_grad": True}, "TENSORS_SAVED"),
        ({"relative_difference": 1e-3}, "ANSWERS_DIFFER"),
    ],
)
def test_each_fault_fails(changed: dict[str, Any], code: str) -> None:
    finding = found(**changed)
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, code)
    assert finding.rule["gates"] is True
