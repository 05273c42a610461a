"""C28: rates of both directions, and a matrix of copies between GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.reading import Tree, is_noisy, mapping, number, sequence
from envkit.checks.sheet import Sheet, Shown, cell, tables


def _both_ways(check: Tree) -> Sheet:
    observed = mapping(check.get("observed"))
    names = ("up_gb_per_s", "down_gb_per_s", "both_gb_per_s")
    rates = [cell(number(observed.get(name)), ".1f") for name in names]
    rows = [rates] if rates[2] != "-" else []
    head = ("to the device, GB/s", "from it", "both at once")
    return Sheet(title="Copies in both directions", head=head, rows=rows, noisy=is_noisy(check))


def _matrix(check: Tree) -> Sheet:
    rates: dict[tuple[int, int], float | None] = {}
    for pair in map(mapping, sequence(mapping(check.get("observed")).get("pairs"))):
        source, target = number(pair.get("source")), number(pair.get("target"))
        if source is not None and target is not None:
            rates[int(source), int(target)] = number(pair.get("gb_per_s"))
    cards = sorted({index for pair in rates for index in pair})
    rows = [[f"gpu:{card}", *(cell(rates.get((card, other)), ".1f") for other in cards)] for card in cards]
    head = ("from, to GB/s", *(f"gpu:{other}" for other in cards))
    return Sheet(title="Copies between GPUs", head=head, rows=rows)


def show(checks: Sequence[Tree]) -> Shown:
    """Show the rate of both directions at once, and of every pair of GPUs."""
    by_id = {str(check.get("id")): check for check in checks}
    sheets = (_both_ways(mapping(by_id.get("C28.both_ways"))), _matrix(mapping(by_id.get("C28.matrix"))))
    return Shown(
        ident="links",
        title="Links of the GPUs",
        sheets=tables(*sheets),
        remark="Copies go from the GPU of the row to the GPU of the column.",
    )
