from __future__ import annotations

import json
from typing import Any

import pytest

from envkit.checks.catalog import TIERS, CheckEntry, _entry, _ordered, budget_s, catalog, select
from envkit.ground.errors import UsageError
from envkit.smoke import suite
from envkit.verify.payload import catalog_rows


def test_the_payload_runs_the_checks_of_the_catalog() -> None:
    checks: Any = suite.load(json.loads(json.dumps(catalog_rows())))  # type: ignore[no-untyped-call]
    assert [item.id for item in checks] == [entry.id for entry in catalog()]
    for tier in TIERS:
        assert [entry.seconds(tier) for entry in catalog()] == [item.budget(tier) for item in checks]
    assert all(callable(item.run) for item in checks)


def test_the_kernel_check_comes_before_whatever_touches_cuda_in_this_process() -> None:
    ids = [entry.id for entry in catalog()]
    assert ids.index("C04") < ids.index("C03") < ids.index("C02") < ids.index("C10")
    assert len(ids) == len(set(ids))


def entry(name: str, *after: str) -> CheckEntry:
    return CheckEntry(name, "a check", "quick", 1.0, "host", after=after, folder=name.lower())


def test_a_check_runs_by_its_id_and_after_those_it_names() -> None:
    ordered = _ordered([entry("C03"), entry("C01", "C03"), entry("C02"), entry("C00")])
    assert [item.id for item in ordered] == ["C00", "C03", "C01", "C02"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("C01", "C02"), entry("C02", "C01")], "checks/c02/check.yaml: after: C01 is circular"),
        ([entry("C01", "C01")], "after: C01 is circular"),
        ([entry("C01", "C99")], "checks/c01/check.yaml: after: C99 is not a check"),
        ([entry("C01"), entry("C01")], "checks/c01 and checks/c01 have the same id C01"),
    ],
)
def test_an_order_that_cannot_be_is_refused(entries: list[CheckEntry], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ordered(entries)


CARD = {
    "id": "C90",
    "title": "a check",
    "topic": "Other checks",
    "tier": "quick",
    "needs": "host",
    "verifies": "something",
    "counts": "yes",
    "budget_s": "1",
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": "90"}, "checks/c90_new/check.yaml: id: '90' is not C and two digits"),
        ({"tier": "slow"}, "tier: 'slow' is not one of quick, standard, deep"),
        ({"needs": "tpu"}, "needs: 'tpu' is not one of host, torch, cuda"),
        ({"budget_s": "10s"}, "budget_s: '10s' is not a number of seconds"),
        ({"budget_s": "-1"}, "budget_s: '-1' is not a number of seconds"),
        ({"budget_s": "nan"}, "budget_s: 'nan' is not a number of seconds"),
        ({"budgets_s": {"deep": "long"}}, r"budgets_s: \{'deep': 'long'\} is not a mapping of tiers to seconds"),
        ({"budgets_s": ["60"]}, r"budgets_s: \['60'\] is not a mapping of tiers to seconds"),
        ({"budgets_s": None}, "budgets_s: None is not a mapping of tiers to seconds"),
        ({"after": "C03"}, "after: 'C03' is not a list of checks"),
        ({"after": ["C03", None]}, r"after: \['C03', None\] is not a list of checks"),
        ({"counts": None}, "counts: missing or not text"),
        ({"contents": "x"}, "contents: unknown key"),
    ],
)
def test_a_card_at_fault_is_refused_with_its_place(changed: dict[str, Any], message: str) -> None:
    assert _entry("c90_new", CARD).id == "C90"
    with pytest.raises(UsageError, match=message):
        _entry("c90_new", {**CARD, **changed})


def test_a_tier_holds_every_cheaper_one() -> None:
    quick, deep = select("quick"), select("deep")
    assert set(quick) <= set(deep)
    assert quick
    assert budget_s(deep, "deep") > budget_s(quick, "standard") > budget_s(quick) > 0


def test_only_and_skip_narrow_in_the_payloads_order() -> None:
    ids = [entry.id for entry in select("quick", ["c01", "C00"])]
    assert ids == ["C00", "C01"]
    assert "C01" not in [entry.id for entry in select("quick", (), ["C01"])]


@pytest.mark.parametrize(
    ("tier", "only", "skip", "message"),
    [
        ("fast", (), (), "unknown tier 'fast'"),
        ("quick", ("C98", "C00"), (), "unknown check C98"),
        ("quick", (), ("X",), "unknown check X"),
        ("quick", ("C00",), ("C00",), "no checks left to run"),
    ],
)
def test_a_selection_that_cannot_run_is_refused(
    tier: str, only: tuple[str, ...], skip: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(tier, only, skip)
    assert caught.value.message == message
    assert caught.value.hint


# What needs no torch that sees a GPU, and all the same takes no time without one.
ON_A_GPU = ("C04", "C25")
# Its time is that of the plan's packages; torch and its companions are imported by earlier checks.
BY_THE_PLAN = ("C29",)


@pytest.mark.parametrize(("tier", "seconds"), [("quick", 61), ("standard", 181), ("deep", 720)])
def test_every_tier_fits_its_time_on_a_cpu(tier: str, seconds: float) -> None:
    spent = [
        entry.seconds(tier)
        for entry in select(tier)
        if entry.needs != "cuda" and entry.id not in (*ON_A_GPU, *BY_THE_PLAN)
    ]
    assert sum(spent) <= seconds


def test_a_check_may_take_longer_in_a_deeper_tier() -> None:
    (loader,) = select("quick", ["C12"])
    assert loader.seconds("quick") < loader.seconds("standard")
