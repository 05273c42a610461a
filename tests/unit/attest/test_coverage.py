import pytest

from envkit.attest.verification import MINOR, NATIVE, Card, coverage, cubin
from tests.support.attestations import LABELS


def card(capability: str | None, driver: str | None = "580.95.05") -> Card:
    return Card(name="a card", capability=capability, driver=driver)


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        ("8.0", "sm_80"),
        ("8.6", "sm_86"),
        ("8.9", "sm_86"),
        ("9.0", "sm_90a"),
        ("7.5", None),
        ("10.0", None),
        (None, None),
    ],
)
def test_a_gpu_proves_the_code_that_it_runs(capability: str | None, runs: str | None) -> None:
    assert cubin(["sm_80", "sm_86", "sm_90a"], capability) == runs


def test_what_was_never_tried_is_named() -> None:
    found = coverage(LABELS, [card("9.0"), card("8.9", "535.1")])
    assert (found.archs, found.verified, found.never) == (
        ("8.0", "9.0", "12.0"),
        ("8.0", "9.0"),
        ("12.0",),
    )
    assert found.drivers == {NATIVE: "560.28.03 or newer", MINOR: "525.60.13 to below 560.28.03"}
    assert found.never_drivers == ()
    assert coverage(LABELS, [card("9.0")]).never_drivers == (MINOR,)
    assert coverage(LABELS, []).never_drivers == (NATIVE, MINOR)


def test_an_image_for_cpus_leaves_no_gpu_out() -> None:
    found = coverage({}, [])
    assert (found.never, found.never_drivers, dict(found.drivers)) == ((), (), {})


def test_a_driver_that_was_not_told_proves_no_kind_of_driver() -> None:
    assert coverage(LABELS, [card("9.0", None)]).never_drivers == (NATIVE, MINOR)
