"""Every tier from its first check to its last on a device: a model, which is the CPU with a clock of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import judges, select
from envkit.checks.model import Verdict
from envkit.verify.judge import judge
from tests.support.standin import StandIn

pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")

SPEC: dict[str, Any] = {
    "gpu": True,
    "python": ".".join(map(str, sys.version_info[:2])),
    "loader": {"num_workers": 2, "prefetch_factor": 2, "batch_bytes": 4 << 20, "pin_memory": True},
}
LAUNCH = {"sustained_s": 4.0}


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    return StandIn.prepare(tmp_path)


def assert_no_error(document: dict[str, Any], tier: str) -> None:
    """Every check of the tier ran on the device, and none of them is an ERROR."""
    assert document["order"] == [entry.id for entry in select(tier)]
    found = judge(document, SPEC, select(tier), judges())
    errors = {item.id: item.finding.message for item in found if item.finding.verdict is Verdict.ERROR}
    assert not errors
    on_device = {item["id"].partition(".")[0] for item in document["checks"] if item["subject"] == "gpu:0"}
    assert {entry.id for entry in select(tier) if entry.needs == "cuda"} <= on_device


@pytest.mark.long
@pytest.mark.parametrize("tier", ["quick", "deep"])
def test_a_whole_tier_on_a_device_comes_to_its_end_without_an_error(standin: StandIn, tier: str) -> None:
    """The deep tier has every check of the standard one, and a check asks only whether its tier is the quick one."""
    assert set(select("standard")) < set(select("deep"))
    document = standin.document("--tier", tier, spec={**SPEC, "launch": LAUNCH})
    assert_no_error(document, tier)


@pytest.mark.long
def test_an_error_after_which_nothing_works_is_named_once(standin: StandIn) -> None:
    only = ("C04", "C05", "C06", "C09", "C10", "C17")
    document = standin.document("--only", ",".join(only), spec=SPEC, STANDIN_FAULT="broken")
    found = {item["id"]: item for item in document["checks"]}
    told = {name: (item["status"], (item["reason"] or {}).get("code")) for name, item in found.items()}
    assert told["C06"] == ("error", "CUDA_CONTEXT_LOST")
    assert found["C06"]["reason"]["message"].startswith(
        "CUDA error: an illegal memory access was encountered; no later"
    )
    # C17 would compute on the CPU, but seeding torch reaches for the lost device as well.
    assert told["C09"] == told["C10"] == told["C17"] == ("skip", "CUDA_CONTEXT_LOST")
    assert found["C10"]["reason"]["message"].startswith("C06 ended with a CUDA error")
    assert [name for name, (status, _) in told.items() if status == "error"] == ["C06"]
    judged = judge(document, SPEC, select("quick", only), judges())
    assert {item.id for item in judged if item.blames == "machine"} == {"C06"}


def test_too_little_memory_of_the_device_skips_a_check_and_says_how_much_is_free(standin: StandIn) -> None:
    document = standin.document("--only", "C06,C09", spec=SPEC, STANDIN_FAULT="full")
    found = {item["id"]: item for item in document["checks"]}
    assert (found["C06"]["status"], found["C06"]["reason"]["code"]) == ("skip", "GPU_MEMORY_SHORT")
    total = 1 << 34
    expected = f"CUDA out of memory. Tried to allocate 2.00 GiB. ({total} of {total} bytes are free)"
    assert found["C06"]["reason"]["message"] == expected
    assert found["C09.pinned"]["status"] == "ran"
