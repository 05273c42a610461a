"""C26: a row per GPU, and which GPUs were not measured."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks import peaks
from envkit.checks.reading import Tree, mapping, number
from envkit.checks.sheet import Sheet, Shown, cell, tables
from envkit.ground.text import clean


def _row(check: Tree) -> list[str]:
    observed = mapping(check.get("observed"))
    rates, health = mapping(observed.get("rates")), mapping(observed.get("health"))
    share = number(mapping(check.get("derived")).get("fraction_of_limit"))
    return [
        clean(check.get("subject") or ""),
        clean(observed.get("name") or "-"),
        cell(number(rates.get("h2d_gb_per_s")), ".1f"),
        cell(number(rates.get("d2h_gb_per_s")), ".1f"),
        cell(number(rates.get("tflops")), ".4g"),
        cell(share, ".0%"),
        cell(number(health.get("sm_mhz")), ".0f"),
        cell(number(health.get("celsius")), ".0f"),
    ]


def _held(check: Tree) -> str:
    """Return why a GPU's products are below what its clock allows, if its power limit is the reason."""
    observed = mapping(check.get("observed"))
    share = number(mapping(check.get("derived")).get("fraction_of_limit"))
    held = peaks.power_held(dict(mapping(observed.get("health"))), number(observed.get("max_sm_mhz")))
    if not held or share is None:
        return ""
    subject = clean(check.get("subject") or "")
    return f"{subject}: {held}, so products reach {share:.0%} of what its top clock allows."


def show(checks: Sequence[Tree]) -> Shown:
    """Show the rates and the health of every GPU side by side."""
    rows = [_row(check) for check in checks if check.get("id") == "C26.gpu"]
    notes = tuple(held for check in checks if check.get("id") == "C26.gpu" and (held := _held(check)))
    notes += tuple(clean(check.get("message") or "") + "." for check in checks if check.get("id") == "C26.coverage")
    head = ("GPU", "name", "H2D GB/s", "D2H GB/s", "TFLOP/s", "of its limit", "clock, MHz", "Celsius")
    return Shown(
        ident="every-gpu",
        title="Every GPU",
        sheets=tables(Sheet(title="Every GPU", head=head, rows=rows, notes=notes)),
        remark="A few seconds per GPU: copies one GPU at a time, products in parallel. C10 and C15 measure longer.",
    )
