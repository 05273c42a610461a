from typing import Any

import pytest

from tests.support.verdicts import FAIL, PASS, found, said

STATE = {"bytes": 114779, "weights_only": True, "differences": 0, "next_loss": 2.25, "next_loss_restored": 2.25}
ACTIVATIONS = {"saved_bytes": 1212416, "saved_bytes_checkpointed": 163840, "gradient_difference": 0.0}


def test_a_state_that_survives_passes() -> None:
    finding = found("C19.state", STATE)
    assert (finding.verdict, finding.rule["gates"]) == (PASS, True)
    assert "from 115 kB (weights_only) are bit-identical" in finding.message
    assert found("C19.activations", ACTIVATIONS).message.startswith("activation checkpointing keeps 14% of the bytes")


@pytest.mark.parametrize(
    ("part", "observed", "code"),
    [
        ("state", {**STATE, "differences": 1}, "STATE_CHANGED"),
        ("state", {**STATE, "next_loss_restored": 2.250001}, "RESTORED_STEP_DIFFERS"),
        ("activations", {**ACTIVATIONS, "gradient_difference": 1e-3}, "CHECKPOINTED_GRADIENT"),
        ("activations", {**ACTIVATIONS, "saved_bytes_checkpointed": 1212416}, "CHECKPOINT_KEEPS_ALL"),
    ],
)
def test_each_fault_fails_and_gates(part: str, observed: dict[str, Any], code: str) -> None:
    assert said(f"C19.{part}", observed) == (FAIL, code)
    assert found(f"C19.{part}", observed).rule["gates"] is True
