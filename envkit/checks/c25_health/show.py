"""C25: what each GPU reports about its memory, errors, power limit and link."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.reading import Tree, mapping, number
from envkit.checks.sheet import Sheet, Shown, cell, tables


def show(checks: Sequence[Tree]) -> Shown:
    """Show a table with a row per GPU."""
    by_gpu: dict[str, dict[str, Tree]] = {}
    for check in checks:
        part = str(check["id"]).partition(".")[2]
        by_gpu.setdefault(str(check.get("subject")), {})[part] = mapping(check.get("observed"))
    rows = [_row(subject, parts) for subject, parts in by_gpu.items() if "device" in parts]
    head = ("GPU", "remapped rows", "retired pages", "uncorrectable errors", "ever", "power limit, W", "replays")
    sheet = Sheet(title="Health that the GPU reports", head=head, rows=rows, notes=("- : not reported by the GPU.",))
    return Shown(ident="health", title="Health that the GPU reports", sheets=tables(sheet) if rows else ())


def _row(subject: str, parts: dict[str, Tree]) -> list[str]:
    remaps, pages, ecc = (parts.get(name, {}) for name in ("remaps", "pages", "ecc"))
    return [
        subject.removeprefix("gpu:"),
        cell(_sum(remaps, "corrected", "uncorrected"), ".0f"),
        cell(_sum(pages, "single_bit", "double_bit"), ".0f"),
        cell(number(ecc.get("volatile_uncorrected")), ".0f"),
        cell(number(ecc.get("aggregate_uncorrected")), ".0f"),
        cell(number(parts.get("power", {}).get("limit_w")), ".0f"),
        cell(number(parts.get("replays", {}).get("count")), ".0f"),
    ]


def _sum(observed: Tree, *names: str) -> float | None:
    values = [number(observed.get(name)) for name in names]
    known = [value for value in values if value is not None]
    return sum(known) if known else None
