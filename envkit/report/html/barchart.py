"""Horizontal bars: ratios to a reference, errors on a logarithmic scale, and parts of a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from envkit.report.html.shapes import WIDTH, bar, label, line, marker, picture, short, ticks
from envkit.report.markup import Markup, el

_LEFT, _RIGHT = 118, 50
_ROW = 24
_ROOM = WIDTH - _LEFT - _RIGHT


def _grid(largest: float, top: float, bottom: float) -> tuple[Callable[[float], float], list[object]]:
    """Where a value lies on a scale from 0, and the scale's lines and numbers."""
    scale = ticks(largest, 4)

    def x_of(value: float) -> float:
        return _LEFT + _ROOM * value / scale[-1]

    parts: list[object] = []
    for value in scale:
        parts += [line(x_of(value), top, x_of(value), bottom, "grid")]
        parts += [label(x_of(value), bottom + 16, short(value), anchor="middle", kind="quiet")]
    return x_of, parts


def ratio_chart(
    ident: str, title: str, description: str, rows: Sequence[tuple[str, float]], *, reference: str
) -> Markup:
    """Bars from 0, with a line at 1 that `reference` names."""
    bottom = 26 + _ROW * len(rows)
    x_of, parts = _grid(max([1.0, *(value for _, value in rows)]), 22, bottom)
    for index, (name, value) in enumerate(rows):
        y = 26 + _ROW * index
        parts += [label(_LEFT - 8, y + 15, name, anchor="end"), bar(_LEFT, y + 3, x_of(value) - _LEFT, 16, "fill s0")]
    parts += [line(x_of(1), 18, x_of(1), bottom, "limit")]
    for index, (_, value) in enumerate(rows):
        parts += [label(x_of(value) + 6, 42 + _ROW * index, f"{value:.2f}", kind="strong")]
    # Near the right edge the name moves left, so that it is not cut off.
    parts += [label(min(x_of(1), WIDTH - 4 * len(reference)), 14, reference, anchor="middle", kind="quiet")]
    return picture(ident, bottom + 24, title, description, *parts)


def value_chart(ident: str, title: str, description: str, rows: Sequence[tuple[str, float]], *, unit: str) -> Markup:
    """Bars from 0 upwards, each with its value in `unit`."""
    bottom = 6 + _ROW * len(rows)
    x_of, parts = _grid(max(value for _, value in rows), 2, bottom)
    for index, (name, value) in enumerate(rows):
        y = 6 + _ROW * index
        parts += [label(_LEFT - 8, y + 15, name, anchor="end"), bar(_LEFT, y + 3, x_of(value) - _LEFT, 16, "fill s0")]
        parts += [label(x_of(value) + 6, y + 16, short(value), kind="strong")]
    parts += [label(_LEFT + _ROOM / 2, bottom + 34, unit, anchor="middle", kind="quiet")]
    return picture(ident, bottom + 42, title, description, *parts)


def error_chart(ident: str, title: str, description: str, rows: Sequence[tuple[str, float]]) -> Markup:
    """Dots on a logarithmic scale of whole powers of ten; `rows` are positive."""
    low = math.floor(math.log10(min(value for _, value in rows)))
    high = max(math.ceil(math.log10(max(value for _, value in rows))), low + 1)
    bottom = 26 + _ROW * len(rows)

    def x_of(value: float) -> float:
        return _LEFT + _ROOM * (math.log10(value) - low) / (high - low)

    parts: list[object] = []
    every = max(1, (high - low) // 4)
    for power in range(low, high + 1, every):
        x = x_of(10.0**power)
        parts += [line(x, 22, x, bottom, "grid")]
        parts += [label(x, bottom + 16, f"1e{power}", anchor="middle", kind="quiet")]
    for index, (name, value) in enumerate(rows):
        y = 26 + _ROW * index + 11
        parts += [label(_LEFT - 8, y + 4, name, anchor="end"), line(_LEFT, y, WIDTH - _RIGHT, y, "thread")]
        parts += [marker(0, x_of(value), y), label(x_of(value) + 9, y + 4.5, f"{value:.1e}", kind="strong")]
    return picture(ident, bottom + 24, title, description, *parts)


def parts_chart(
    ident: str,
    title: str,
    description: str,
    rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]],
    *,
    unit: str,
) -> Markup:
    """Stacked bars: each row's parts are (name, value, kind) and share one scale in `unit`."""
    scale = ticks(max(sum(value for _, value, _ in parts) for _, parts in rows), 4)
    left, room = 8, WIDTH - 8 - 30

    def x_of(value: float) -> float:
        return left + room * value / scale[-1]

    drawn: list[object] = []
    y = 6.0
    for name, parts in rows:
        drawn += [label(left, y + 13, name, kind="strong")]
        begin = 0.0
        for index, (part, value, kind) in enumerate(parts):
            drawn += [bar(x_of(begin), y + 20, x_of(begin + value) - x_of(begin), 22, f"fill {kind}")]
            begin += value
            below = y + 52 + 18 * index
            drawn += [bar(left, below, 11, 11, f"fill {kind}")]
            drawn += [label(left + 18, below + 10, f"{part} {short(value)} {unit}", kind="quiet")]
        y += 58 + 18 * len(parts)
    grid = [line(x_of(value), 22, x_of(value), y - 6, "grid") for value in scale]
    named = [label(x_of(value), y + 10, short(value), anchor="middle", kind="quiet") for value in scale]
    hatch = el(
        "pattern",
        el("rect", width="8", height="8", class_="hatch-back"),
        el("path", d="M-2 2 L2 -2 M0 8 L8 0 M6 10 L10 6", class_="hatch-line"),
        id="hatch",
        width="8",
        height="8",
        patternUnits="userSpaceOnUse",
    )
    return picture(ident, y + 18, title, description, el("defs", hatch), *grid, *drawn, *named)
