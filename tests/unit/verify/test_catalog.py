from __future__ import annotations

from typing import Any

import pytest

from envkit.ground.errors import UsageError
from envkit.smoke import registry
from envkit.verify.catalog import TIERS, budget_s, catalog, select


def test_the_list_read_from_the_sources_is_the_list_the_payload_runs() -> None:
    modules: Any = registry.load()  # type: ignore[no-untyped-call]
    shipped = [(item.ID, item.TITLE, item.TIER, float(item.BUDGET_S), item.NEEDS) for item in modules]
    read = [(entry.id, entry.title, entry.tier, entry.budget_s, entry.needs) for entry in catalog()]
    assert read == shipped
    budget: Any = registry.budget
    for tier in TIERS:
        assert [entry.seconds(tier) for entry in catalog()] == [budget(item, tier) for item in modules]


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
        ("fast", (), (), "'fast' is not a tier"),
        ("quick", ("C98", "C00"), (), "no check C98"),
        ("quick", (), ("X",), "no check X"),
        ("quick", ("C00",), ("C00",), "no check is left to run"),
    ],
)
def test_a_selection_that_cannot_run_is_refused(
    tier: str, only: tuple[str, ...], skip: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(tier, only, skip)
    assert caught.value.message == message
    assert caught.value.hint
