"""C27: how much device memory was tested, and the rate of a copy within it."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.reading import Tree, is_noisy, mapping, number
from envkit.checks.sheet import Sheet, Shown, cell, tables


def show(checks: Sequence[Tree]) -> Shown:
    """Show how much memory was tested, and the rate of a copy compared with the memory bus."""
    by_id = {str(check.get("id")): check for check in checks}
    pattern, copy = mapping(by_id.get("C27.pattern")), mapping(by_id.get("C27.copy"))
    size = number(mapping(pattern.get("observed")).get("bytes"))
    wrong = [number(count) for count in mapping(mapping(pattern.get("observed")).get("wrong")).values()]
    derived = mapping(copy.get("derived"))
    row = [
        cell(None if size is None else size / 2**30, ".1f"),
        cell(sum(count for count in wrong if count is not None) if wrong else None, ".0f"),
        cell(number(mapping(copy.get("observed")).get("gb_per_s")), ".0f"),
        cell(number(derived.get("limit")), ".0f"),
        cell(number(derived.get("fraction_of_limit")), ".0%"),
    ]
    rows = [row] if any(item != "-" for item in row) else []
    head = ("GiB tested", "wrong words", "copy GB/s", "limit GB/s", "of limit")
    return Shown(
        ident="device-memory",
        title="Device memory",
        sheets=tables(Sheet(title="Device memory", head=head, rows=rows, noisy=is_noisy(copy))),
        remark="A copy counts the bytes it reads and those it writes. The limit is bus width times memory clock.",
    )
