"""A healthy GPU of each family passes, and a sick one is found: exit code 9, or 6 where the image may be faulty."""

from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.c10_transfer.judge import link_of
from tests.support.gpu_families import FAMILIES, Family, clock, gain, healthy, link, rate
from tests.support.records import kernel, record_of

BY_NAME = {family.name: family for family in FAMILIES}


def judged(family: Family, *checks: dict[str, Any]) -> dict[str, Any]:
    return record_of([kernel(), *checks], gpu=f"NVIDIA {family.name}")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_healthy_gpu_is_found_healthy(name: str) -> None:
    family = BY_NAME[name]
    record = judged(family, *healthy(family).values())
    told = {item["id"]: (item["verdict"], item["reason_code"]) for item in record["checks"]}
    ids = {what: item["id"] for what, item in healthy(family).items()}
    assert {what: told[ids[what]] for what in ids} == {what: family.expected.get(what, ("PASS", None)) for what in ids}
    assert record["summary"]["exit_code"] == 0


@pytest.mark.parametrize(
    "name", [name for name, family in BY_NAME.items() if link_of(family.link).kind != "integrated"]
)
@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_a_slow_link_is_the_machines_fault(name: str, way: str) -> None:
    family = BY_NAME[name]
    limit = link_of(family.link).limit
    assert limit is not None
    record = judged(family, rate(family, way, 0.24 * limit))
    assert (record["summary"]["exit_code"], record["summary"]["diagnosis"]) == (9, ["BANDWIDTH_BELOW_FLOOR"])


@pytest.mark.parametrize(
    "name", [name for name, family in BY_NAME.items() if family.link["gen_max"] in (3, 4, 5) and not family.link["c2c"]]
)
@pytest.mark.parametrize("changed", [{"gen": 1}, {"width": 1}, {"gen": 2, "width": 4}])
def test_a_link_that_fell_back_is_the_machines_fault(name: str, changed: dict[str, int]) -> None:
    """At 0.85 of what the link was at that moment, all of these passed."""
    family = BY_NAME[name]
    now = link_of({**family.link, **changed})
    assert now.limit is not None
    assert now.most is not None
    found = 0.85 * now.limit
    record = judged(family, rate(family, "h2d", found, **changed), link(family, found, **changed))
    assert record["summary"]["exit_code"] == (9 if now.limit < now.most / 2 else 0)
    assert "LINK_DOWNTRAINED" in record["summary"]["diagnosis"]


@pytest.mark.parametrize("name", [name for name, family in BY_NAME.items() if "gain" not in family.expected])
def test_products_without_tensor_cores_fail(name: str) -> None:
    family = BY_NAME[name]
    assert judged(family, gain(family, 1.1))["summary"]["diagnosis"] == ["TENSOR_CORES_UNUSED"]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_clock_that_collapsed_is_the_machines_fault(name: str) -> None:
    family = BY_NAME[name]
    record = judged(family, clock(family, 0.11))
    assert (record["summary"]["exit_code"], record["summary"]["diagnosis"]) == (9, ["CLOCK_COLLAPSED"])
