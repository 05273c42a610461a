"""The payload's checks as the host knows them, read from the sources it ships and never from what an image says.

A check that the payload leaves out is noticed because this list has it. The sources are read as text: nothing of the
payload is imported here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TIERS = ("quick", "standard", "deep")


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """One check of the payload. `budget_s` is the time it is meant to take; it is stopped at four times that."""

    id: str
    title: str
    tier: str
    budget_s: float
    needs: str  # 'host' | 'torch' | 'cuda'
    budgets: tuple[tuple[str, float], ...] = ()  # seconds in the deeper tiers, where a check does more there

    def seconds(self, tier: str) -> float:
        """The time the check is meant to take in `tier`."""
        return dict(self.budgets).get(tier, self.budget_s)


@cache
def catalog() -> tuple[CheckEntry, ...]:
    """Every check the payload ships, in the order it runs them."""
    root = resources.files("envkit") / "smoke"
    order = _constants((root / "registry.py").read_text(encoding="utf-8"))["ORDER"]
    return tuple(_entry(_constants((root / "checks" / f"{name}.py").read_text(encoding="utf-8"))) for name in order)


def select(tier: str, only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[CheckEntry, ...]:
    """The checks of a tier and of every cheaper one, in order; `only` picks among all tiers, `skip` leaves out.

    Raises:
        UsageError: an unknown tier or check id, or nothing is left.
    """
    if tier not in TIERS:
        raise UsageError(f"{tier!r} is not a tier", hint=f"use one of {', '.join(TIERS)}")
    wanted, unwanted = [item.upper() for item in only], [item.upper() for item in skip]
    known = {entry.id for entry in catalog()}
    unknown = [item for item in (*wanted, *unwanted) if item not in known]
    if unknown:
        raise UsageError(f"no check {', '.join(unknown)}", hint="envkit verify --list")
    allowed = TIERS[: TIERS.index(tier) + 1]
    chosen = [entry for entry in catalog() if (entry.id in wanted if wanted else entry.tier in allowed)]
    left = tuple(entry for entry in chosen if entry.id not in unwanted)
    if not left:
        raise UsageError("no check is left to run", hint="envkit verify --list")
    return left


def _constants(source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _entry(constants: dict[str, Any]) -> CheckEntry:
    return CheckEntry(
        constants["ID"],
        constants["TITLE"],
        constants["TIER"],
        float(constants["BUDGET_S"]),
        constants["NEEDS"],
        tuple((tier, float(seconds)) for tier, seconds in constants.get("BUDGETS", {}).items()),
    )


def budget_s(entries: Sequence[CheckEntry], tier: str = "quick") -> float:
    """Seconds the checks are meant to take together in `tier`."""
    return sum(entry.seconds(tier) for entry in entries)
