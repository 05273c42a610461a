"""How samples spread: every sample as a dot, over a box of the middle half, each row relative to its own median."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.report.html.shapes import WIDTH, at, bar, label, line, picture, short
from envkit.report.lines import fitted
from envkit.report.markup import Markup, el
from envkit.report.measured import Spread

_LEFT, _RIGHT, _ROW = 12, 12, 42
# The narrowest of these that shows nearly all samples is used.
_SCALES = (
    (0.98, 0.99, 1.0, 1.01, 1.02),
    (0.95, 0.975, 1.0, 1.025, 1.05),
    (0.9, 0.95, 1.0, 1.05, 1.1),
    (0.8, 0.9, 1.0, 1.1, 1.2),
    (0.5, 0.75, 1.0, 1.25, 1.5),
    (0.5, 1.0, 1.5, 2.0),
)
_SHOWN = 0.92
# Characters of a row's name that leave room for its median.
_NAME = 24


def strip_chart(ident: str, title: str, description: str, rows: Sequence[Spread]) -> Markup:
    """Draw the spreads below each other on one scale; what lies beyond it is a ring at its end, and counted."""
    bottom = 8 + _ROW * len(rows)
    scale = _scale(rows)
    lowest, highest = scale[0], scale[-1]

    def x_of(ratio: float) -> float:
        kept = min(max(ratio, lowest), highest)
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (kept - lowest) / (highest - lowest)

    parts: list[object] = [line(x_of(value), 8, x_of(value), bottom, "grid") for value in scale]
    for index, row in enumerate(rows):
        top = 8 + _ROW * index
        middle = quantile(row.values, 0.5)
        y = top + 29
        beyond = sum(not lowest <= value / middle <= highest for value in row.values)
        told = f"{short(middle)} {row.unit}" + (f", {beyond} beyond" if beyond else "")
        parts += [
            label(_LEFT, top + 15, fitted(row.id.partition(".")[2] or row.id, _NAME)),
            label(WIDTH - _RIGHT, top + 15, told, anchor="end", kind="strong"),
        ]
        low, high = (x_of(quantile(row.values, part) / middle) for part in (0.25, 0.75))
        parts += [line(_LEFT, y, WIDTH - _RIGHT, y, "thread"), bar(low, y - 8, high - low, 16, "box")]
        for value in row.values:
            kind = "dot" if lowest <= value / middle <= highest else "beyond"
            parts += [el("circle", cx=at(x_of(value / middle)), cy=at(y), r="2.6", class_=kind)]
        parts += [line(x_of(1), y - 9, x_of(1), y + 9, "median")]
    for value in scale:
        anchor = {lowest: "start", highest: "end"}.get(value, "middle")
        parts += [label(x_of(value), bottom + 16, short(value), anchor=anchor, kind="quiet")]
    parts += [label(WIDTH / 2, bottom + 34, "times the median", anchor="middle", kind="quiet")]
    return picture(ident, bottom + 42, title, description, *parts)


def _scale(rows: Sequence[Spread]) -> tuple[float, ...]:
    ratios = [value / quantile(row.values, 0.5) for row in rows for value in row.values]
    shown = (sum(scale[0] <= ratio <= scale[-1] for ratio in ratios) / len(ratios) for scale in _SCALES)
    return next((scale for scale, share in zip(_SCALES, shown, strict=True) if share >= _SHOWN), _SCALES[-1])


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` (0..1) of the values lie, linear between neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * part
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
