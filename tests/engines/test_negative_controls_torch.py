"""A torch that does something else than it says is caught by the check whose subject that is, in a real container."""

from __future__ import annotations

import pytest

from tests.engines.broken_worlds import Sound
from tests.engines.torch_breaks import CODE, EXPECTED
from tests.support.payloads import ruled

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_torch_that_does_something_else(sound: Sound, name: str) -> None:
    expected = EXPECTED[name]
    checks = ",".join(sorted({check.partition(".")[0] for check in expected}))
    found = sound.said(checks, f"--env=BREAK={name}", image=sound.broken(CODE))
    if ("SKIP", "NO_BF16_UNITS") in found.values():
        pytest.skip("this processor has no bfloat16 instructions, which the check needs")
    assert {check: found.get(check) for check in expected} == expected, found


def test_a_loader_that_starves_the_training(sound: Sound) -> None:
    found = sound.checks("C23", "--env=BREAK=starving", image=sound.broken(CODE))["C23.training"]
    # On a CPU, which the loader shares, it is named and advised and no warning; a busy machine makes it inconclusive.
    assert found["verdict"] in ("PASS", "INCONCLUSIVE"), found
    assert found["derived"]["bottleneck"] == "data"
    assert found["derived"]["starved_share"] > 0.5


def test_a_training_whose_loss_rises(sound: Sound) -> None:
    found = ruled(sound.checks("C23", "--env=BREAK=uphill", image=sound.broken(CODE))["C23.training"])
    assert (found.verdict, found.reason_code) == ("FAIL", "LOSS_DOES_NOT_FALL")
