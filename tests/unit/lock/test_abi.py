"""A lock refuses extensions of torch that were built for another torch, CUDA or C++ ABI."""

from dataclasses import replace

import pytest

from envkit.lock import abi
from envkit.lock.abi import Claim, claim_of
from envkit.lock.model import Lock
from tests.unit.lock.samples import from_source, lock, wheel


@pytest.mark.parametrize(
    ("version", "claim"),
    [
        ("2.7.4.post1+cu12torch2.6cxx11abiTRUE", Claim(torch="2.6", cuda="12", cxx11_abi="true")),
        ("2.5.8+cu123torch2.4cxx11abiFALSE", Claim(torch="2.4", cuda="12", cxx11_abi="false")),
        ("0.6.3+pt26cu126", Claim(torch="2.6", cuda="12", cxx11_abi=None)),
        ("1.0+cu118.torch2.10", Claim(torch="2.10", cuda="11", cxx11_abi=None)),
        ("2.7.1+cu126", None),
        ("2.7.1", None),
        ("1.0+optcu1", None),
    ],
)
def test_what_a_version_says(version: str, claim: Claim | None) -> None:
    assert claim_of(version) == claim


def _with(*versions: str, cuda: str | None = "12.6", torch: str = "2.7.1+cu126") -> Lock:
    rows = (*(wheel(f"flash-{number}", version) for number, version in enumerate(versions)), wheel("torch", torch))
    return lock(request=(*lock().request, ("cuda", cuda)), wheels=rows)


def test_the_right_one_is_taken() -> None:
    assert abi.faults(_with("2.8+cu12torch2.7cxx11abiTRUE")) == ()


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            _with("2.8+cu12torch2.6cxx11abiTRUE"),
            "flash-0 2.8+cu12torch2.6cxx11abiTRUE was built for torch 2.6, but the lock has torch 2.7.1+cu126",
        ),
        (_with("2.8+cu11torch2.7"), "flash-0 2.8+cu11torch2.7 was built for CUDA 11, but the lock is for CUDA 12.6"),
        (
            _with("2.8+cu12torch2.7", cuda=None, torch="2.7.1+cpu"),
            "flash-0 2.8+cu12torch2.7 was built for CUDA 12, but the lock is for the CPU",
        ),
        (
            _with("1+torch2.7cxx11abiTRUE", "1+torch2.7cxx11abiFALSE"),
            (
                "extensions of torch with different C++ ABIs: flash-0 1+torch2.7cxx11abiTRUE has cxx11abi true, "
                "flash-1 1+torch2.7cxx11abiFALSE has cxx11abi false"
            ),
        ),
    ],
)
def test_another_one_is_refused_with_both_values(found: Lock, line: str) -> None:
    assert abi.faults(found) == (line,)


def test_a_wheel_built_here_holds_for_exactly_its_torch() -> None:
    assert abi.faults(from_source()) == ()
    moved = replace(from_source(), wheels=(from_source().wheels[0], wheel("torch", "2.7.1+cu128")))
    assert abi.faults(moved) == ("fastsum 1.2 was built for torch 2.7.1+cu126, but the lock has torch 2.7.1+cu128",)
