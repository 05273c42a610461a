"""The measurements of a report: tables and figures of each check, and the spread of all samples."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.catalog import CheckEntry, catalog, shows
from envkit.checks.reading import Tree, check_of, is_noisy, is_number, mapping, sequence
from envkit.checks.sheet import Sheet, Shown, Spread, Strips, short, tables
from envkit.ground.text import clean
from envkit.report.reading import by_check

BUSY = "The machine was busy during some of these measurements; they may be inaccurate."

_FEWEST_SAMPLES = 4  # fewer have no quartiles


def measured(checks: Sequence[Tree]) -> list[tuple[CheckEntry, Shown]]:
    """Return the tables and figures of each check, in the order in which checks run."""
    groups, entries = by_check(checks), {entry.id: entry for entry in catalog()}
    return [(entries[check], show(groups.get(check, []))) for check, show in shows().items()]


def sheets(checks: Sequence[Tree]) -> list[Sheet]:
    """Return every table that has rows, in the order of a report."""
    return [sheet for _, shown in measured(checks) for sheet in shown.sheets]


def samples(checks: Sequence[Tree]) -> Shown:
    """Return figures and a table of the samples of each timed finding."""
    groups = spreads(checks)
    rows = [_row(item) for group in groups.values() for item in group]
    head = ("Finding", "Samples", "Unit", "Minimum", "Median", "Maximum", "Busy")
    noisy = any(item.noisy for group in groups.values() for item in group)
    return Shown(
        ident="samples",
        title="Spread of the samples",
        figures=tuple(_strips(check, group) for check, group in groups.items()),
        details=tables(Sheet("Samples of every timed finding", head, rows, noisy=noisy)),
        remark="Each dot is a sample, the box is the middle half, the bar is the median; a ring at the edge is a"
        " sample beyond the scale.",
    )


def spreads(checks: Sequence[Tree]) -> dict[str, list[Spread]]:
    """Return the samples by check, for findings with enough of them."""
    groups: dict[str, list[Spread]] = {}
    for check in checks:
        samples = mapping(check.get("samples"))
        # Each sample is drawn as a multiple of the median, so 0 and negative values cannot be shown.
        values = tuple(value for value in sequence(samples.get("values")) if is_number(value) and value > 0)
        if len(values) >= _FEWEST_SAMPLES:
            spread = Spread(clean(check["id"]), values, clean(samples.get("unit") or ""), is_noisy(check))
            groups.setdefault(check_of(check["id"]), []).append(spread)
    return groups


def _strips(check: str, group: Sequence[Spread]) -> Strips:
    widest = max(group, key=lambda item: quantile(item.values, 0.75) / quantile(item.values, 0.25))
    summary = f"{len(group)} findings; {widest.id} has the widest spread. The table below has the numbers."
    return Strips(f"samples-{check.lower()}", f"Samples of {check}", summary, group)


def _row(item: Spread) -> list[str]:
    numbers = (min(item.values), quantile(item.values, 0.5), max(item.values))
    return [
        item.id,
        str(len(item.values)),
        item.unit,
        *(short(value) for value in numbers),
        "yes" if item.noisy else "no",
    ]


def quantile(values: Sequence[float], part: float) -> float:
    """Return the quantile `part` (0 to 1) of the values, interpolated linearly."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * part
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
