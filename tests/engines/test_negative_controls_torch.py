"""A torch that does something else than it says is caught by the check whose subject that is, in a real container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.broken_worlds import Forks, Sound
from tests.engines.torch_breaks import CODE, EXPECTED
from tests.support.payloads import ruled

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def image(sound: Sound) -> str:
    """The image whose torch does what BREAK names."""
    return sound.broken(CODE)


@pytest.fixture(scope="module")
def forks(sound: Sound, image: str) -> Iterator[Forks]:
    """One container of it for all of them."""
    with sound.forks(image) as found:
        yield found


@pytest.mark.parametrize("name", EXPECTED)
def test_a_torch_that_does_something_else(sound: Sound, image: str, forks: Forks, name: str) -> None:
    expected = EXPECTED[name]
    checks = ",".join(sorted({check.partition(".")[0] for check in expected}))
    found = sound.said(checks, image=image, runner=forks.given(BREAK=name))
    if ("SKIP", "NO_BF16_UNITS") in found.values():
        pytest.skip("this processor has no bfloat16 instructions, which the check needs")
    assert {check: found.get(check) for check in expected} == expected, found


def test_a_loader_that_starves_the_training(sound: Sound, image: str, forks: Forks) -> None:
    # On a CPU, which the loader shares, it is named and advised and no warning.
    item = sound.checks("C23", image=image, runner=forks.given(BREAK="starving"))["C23.training"]
    found = ruled(item)
    assert found.verdict == "PASS", found
    assert found.derived["bottleneck"] == "data"
    assert found.derived["starved_share"] > 0.5


def test_a_training_whose_loss_rises(sound: Sound, image: str, forks: Forks) -> None:
    found = ruled(sound.checks("C23", image=image, runner=forks.given(BREAK="uphill"))["C23.training"])
    assert (found.verdict, found.reason_code) == ("FAIL", "LOSS_DOES_NOT_FALL")
