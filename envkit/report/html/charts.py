"""The figures of a report as SVG: bars, lines, dots and strips. Lengths are in SVG user units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

from envkit.checks.sheet import (
    Errors,
    Figure,
    Intervals,
    Lines,
    Parts,
    Ratios,
    Sides,
    Spread,
    Strips,
    Titled,
    Treemap,
    Values,
    short,
)
from envkit.ground.text import fitted
from envkit.report.html.markup import Markup, el
from envkit.report.measured import quantile

WIDTH = 380  # of a figure on a phone
WIDE = 760  # of a figure in a wide column
# Series differ by marker and dashes as well as by color.
_MARKERS = ("circle", "square", "triangle", "diamond")
_DASHES = (None, "6 4", "2 3", "8 3 2 3")
_LEGEND_ROW = 18
_BAR_LEFT, _BAR_RIGHT, _BAR_ROW = 118, 50, 24
_BAR_ROOM = WIDTH - _BAR_LEFT - _BAR_RIGHT
_LINES_LEFT, _LINES_RIGHT, _LINES_PLOT = 44, 14, 190
_LINES_FLOOR = 16  # half the width of a floor's mark
_STRIP_EDGE, _STRIP_ROW = 12, 42
_ROW_GAP = 8
_TREEMAP, _TILE_LINE, _TILE_NAME = 360, 42, 7
# The narrowest of these that shows nearly all samples is used.
_SCALES = (
    (0.98, 0.99, 1.0, 1.01, 1.02),
    (0.95, 0.975, 1.0, 1.025, 1.05),
    (0.9, 0.95, 1.0, 1.05, 1.1),
    (0.8, 0.9, 1.0, 1.1, 1.2),
    (0.5, 0.75, 1.0, 1.25, 1.5),
    (0.5, 1.0, 1.5, 2.0),
)
_SHOWN = 0.92  # share of the samples that must be within the scale; outliers are drawn at its edge
_LEAST_SPAN = 1e-8
# Characters of a row's name that leave room for its median.
_STRIP_NAME = 24


def draw(figure: Figure) -> Markup:
    """Return a figure as SVG with a title and a text description. The same figure gives the same bytes."""
    match figure:
        case Lines():
            drawn = _line(figure)
        case Ratios():
            drawn = _ratio(figure)
        case Values():
            drawn = _value(figure)
        case Errors():
            drawn = _error(figure)
        case Parts():
            drawn = _parts(figure)
        case Strips():
            drawn = _strip(figure)
        case Intervals():
            drawn = _intervals(figure)
        case Sides():
            drawn = _sides(figure)
        case Treemap():
            drawn = _treemap(figure)
        case _:
            assert_never(figure)
    return drawn


def _line(figure: Lines) -> Markup:
    top = 14 + _LEGEND_ROW * len(figure.series) + 24
    values = [value for _, points in figure.series for value in points.values()] + [value for _, value in figure.limits]
    values += [value for _, _, value in figure.floors]
    scale = ticks(max(values, default=1.0))
    bottom = top + _LINES_PLOT

    def x_of(step: int) -> float:
        room = WIDTH - _LINES_LEFT - _LINES_RIGHT - 40
        return (
            _LINES_LEFT
            + 20
            + room * (figure.steps.index(step) / (len(figure.steps) - 1) if len(figure.steps) > 1 else 0.5)
        )

    def y_of(value: float) -> float:
        return bottom - _LINES_PLOT * value / scale[-1]

    parts: list[object] = [
        *legend([name for name, _ in figure.series], 12),
        label(2, top - 16, figure.y_label, kind="quiet"),
    ]
    for value in scale:
        parts += [line(_LINES_LEFT, y_of(value), WIDTH - _LINES_RIGHT, y_of(value), "grid")]
        parts += [label(_LINES_LEFT - 6, y_of(value) + 4.5, short(value), anchor="end", kind="quiet")]
    for step in figure.steps:
        parts += [label(x_of(step), bottom + 18, str(step), anchor="middle", kind="quiet")]
    parts += [
        label((_LINES_LEFT + WIDTH - _LINES_RIGHT) / 2, bottom + 36, figure.x_label, anchor="middle", kind="quiet")
    ]
    if figure.marked is not None and figure.marked in figure.steps:
        parts += [line(x_of(figure.marked), top, x_of(figure.marked), bottom, "marked")]
    for name, value in figure.limits:
        parts += [line(_LINES_LEFT, y_of(value), WIDTH - _LINES_RIGHT, y_of(value), "limit")]
        parts += [label(WIDTH - _LINES_RIGHT, y_of(value) - 5, name, anchor="end", kind="strong")]
    for name, step, value in figure.floors:
        left, right = x_of(step) - _LINES_FLOOR, min(x_of(step) + _LINES_FLOOR, WIDTH - _LINES_RIGHT)
        parts += [bar(left, y_of(value), right - left, bottom - y_of(value), "floor-zone")]
        parts += [line(left, y_of(value), right, y_of(value), "floor")]
        parts += [label(right, y_of(value) - 6, name, anchor="end", kind="strong")]
    for index, (_, points) in enumerate(figure.series):
        coordinates = [(x_of(step), y_of(points[step])) for step in figure.steps if step in points]
        parts += [path(index, coordinates), *(marker(index, x, y) for x, y in coordinates)]
    return picture(figure, bottom + 44, *parts)


def _grid(largest: float, top: float, bottom: float) -> tuple[Callable[[float], float], list[object]]:
    """Return the function from a value to its x on a scale from 0, and the lines and numbers of the scale."""
    scale = ticks(largest, 4)

    def x_of(value: float) -> float:
        return _BAR_LEFT + _BAR_ROOM * value / scale[-1]

    parts: list[object] = []
    for value in scale:
        parts += [line(x_of(value), top, x_of(value), bottom, "grid")]
        parts += [label(x_of(value), bottom + 16, short(value), anchor="middle", kind="quiet")]
    return x_of, parts


def _ratio(figure: Ratios) -> Markup:
    return _bars(figure, [(figure.reference, 1.0)], lambda value: f"{value:.2f}", "")


def _value(figure: Values) -> Markup:
    return _bars(figure, figure.limits, short, figure.unit)


def _bars(
    figure: Ratios | Values, limits: Sequence[tuple[str, float]], form: Callable[[float], str], unit: str
) -> Markup:
    """Draw one bar per row, the limits as lines across all rows, and the floors as marks in their rows."""
    top = 26 if limits else 6
    bottom = top + _BAR_ROW * len(figure.rows)
    most = [value for _, value in (*figure.rows, *limits)] + [value for _, _, value in figure.floors]
    x_of, parts = _grid(max(most), top - 4, bottom)
    for index, (name, value) in enumerate(figure.rows):
        y = top + _BAR_ROW * index
        parts += [label(_BAR_LEFT - 8, y + 15, name, anchor="end")]
        parts += [bar(_BAR_LEFT, y + 3, x_of(value) - _BAR_LEFT, 16, f"fill {_fill(figure, index)}")]
    for name, value in limits:
        parts += [line(x_of(value), top - 8, x_of(value), bottom, "limit")]
        # Near the right edge, move the name left so that it is not cut off.
        parts += [label(min(x_of(value), WIDTH - 4 * len(name)), 14, name, anchor="middle", kind="quiet")]
    for row, _, value in figure.floors:
        parts += [line(x_of(value), top + _BAR_ROW * row, x_of(value), top + _BAR_ROW * (row + 1) - 2, "floor")]
    for index, (_, value) in enumerate(figure.rows):
        text = form(value)
        after = x_of(value)
        # If a floor's mark would cross the number, put the number after it.
        crossing = [
            x_of(floor) for row, _, floor in figure.floors if row == index and 0 <= x_of(floor) - after < 8 * len(text)
        ]
        parts += [label(max([after, *crossing]) + 6, top + 16 + _BAR_ROW * index, text, kind="strong")]
    below = bottom + 16
    if unit:
        below += 18
        parts += [label(_BAR_LEFT + _BAR_ROOM / 2, below, unit, anchor="middle", kind="quiet")]
    for _, name, _ in figure.floors:
        below += 18
        parts += [line(_BAR_LEFT, below - 12, _BAR_LEFT, below + 2, "floor"), label(_BAR_LEFT + 8, below, name)]
    return picture(figure, below + 8, *parts)


def _fill(figure: Ratios | Values | Errors, index: int) -> str:
    return figure.fills[index] if figure.fills else "s0"


def _error(figure: Errors) -> Markup:
    low = math.floor(math.log10(min(value for _, value in figure.rows)))
    # A scale needs two ends, even if all values are the same power of ten.
    high = max(math.ceil(math.log10(max(value for _, value in figure.rows))), low + 1)
    bottom = 26 + _BAR_ROW * len(figure.rows)

    def x_of(value: float) -> float:
        return _BAR_LEFT + _BAR_ROOM * (math.log10(value) - low) / (high - low)

    parts: list[object] = []
    every = max(1, (high - low) // 4)
    for power in range(low, high + 1, every):
        x = x_of(10.0**power)
        parts += [line(x, 22, x, bottom, "grid")]
        parts += [label(x, bottom + 16, f"1e{power}", anchor="middle", kind="quiet")]
    for index, (name, value) in enumerate(figure.rows):
        y = 26 + _BAR_ROW * index + 11
        parts += [label(_BAR_LEFT - 8, y + 4, name, anchor="end"), line(_BAR_LEFT, y, WIDTH - _BAR_RIGHT, y, "thread")]
        dot = el("circle", cx=at(x_of(value)), cy=at(y), r="5", class_=f"mark {_fill(figure, index)}")
        parts += [dot, label(x_of(value) + 9, y + 4.5, f"{value:.1e}", kind="strong")]
    return picture(figure, bottom + 24, *parts)


def _parts(figure: Parts) -> Markup:
    scale = ticks(max(sum(value for _, value, _ in parts) for _, parts in figure.rows), 4)
    left, room = 8, WIDTH - 8 - 30

    def x_of(value: float) -> float:
        return left + room * value / scale[-1]

    drawn: list[object] = []
    y = 6.0
    for name, parts in figure.rows:
        drawn += [label(left, y + 13, name, kind="strong")]
        # Short lines, so that the scale does not cross the text below the bar.
        drawn += [line(x_of(value), y + 17, x_of(value), y + 45, "grid") for value in scale]
        begin = 0.0
        for index, (part, value, kind) in enumerate(parts):
            drawn += [bar(x_of(begin), y + 20, x_of(begin + value) - x_of(begin), 22, f"fill {kind}")]
            begin += value
            below = y + 52 + 18 * index
            drawn += [bar(left, below, 11, 11, f"fill {kind}")]
            drawn += [label(left + 18, below + 10, f"{part} {short(value)} {figure.unit}", kind="quiet")]
        y += 58 + 18 * len(parts)
    named = [label(x_of(value), y + 10, short(value), anchor="middle", kind="quiet") for value in scale]
    named += [line(left, y - 6, x_of(scale[-1]), y - 6, "grid")]
    named += [line(x_of(value), y - 10, x_of(value), y - 6, "grid") for value in scale]
    named += [label(left + room / 2, y + 28, figure.unit, anchor="middle", kind="quiet")]
    hatch = el(
        "pattern",
        el("rect", width="8", height="8", class_="hatch-back"),
        el("path", d="M-2 2 L2 -2 M0 8 L8 0 M6 10 L10 6", class_="hatch-line"),
        id="hatch",
        width="8",
        height="8",
        patternUnits="userSpaceOnUse",
    )
    return picture(figure, y + 36, el("defs", hatch), *drawn, *named)


def _strip(figure: Strips) -> Markup:
    bottom = 8 + _STRIP_ROW * len(figure.rows)
    scale = _scale(figure.rows)
    lowest, highest = scale[0], scale[-1]

    def x_of(ratio: float) -> float:
        kept = min(max(ratio, lowest), highest)
        return _STRIP_EDGE + (WIDTH - _STRIP_EDGE - _STRIP_EDGE) * (kept - lowest) / (highest - lowest)

    parts: list[object] = [line(x_of(value), 8, x_of(value), bottom, "grid") for value in scale]
    for index, row in enumerate(figure.rows):
        top = 8 + _STRIP_ROW * index
        middle = quantile(row.values, 0.5)
        y = top + 29
        beyond = sum(not lowest <= value / middle <= highest for value in row.values)
        text = f"{short(middle)} {row.unit}" + (f", {beyond} beyond" if beyond else "")
        parts += [
            label(_STRIP_EDGE, top + 15, fitted(row.id.partition(".")[2] or row.id, _STRIP_NAME)),
            label(WIDTH - _STRIP_EDGE, top + 15, text, anchor="end", kind="strong"),
        ]
        low, high = (x_of(quantile(row.values, part) / middle) for part in (0.25, 0.75))
        parts += [line(_STRIP_EDGE, y, WIDTH - _STRIP_EDGE, y, "thread"), bar(low, y - 8, high - low, 16, "box")]
        for value in row.values:
            kind = "dot" if lowest <= value / middle <= highest else "beyond"
            parts += [el("circle", cx=at(x_of(value / middle)), cy=at(y), r="2.6", class_=kind)]
        parts += [line(x_of(1), y - 9, x_of(1), y + 9, "median")]
    for value in scale:
        anchor = {lowest: "start", highest: "end"}.get(value, "middle")
        parts += [label(x_of(value), bottom + 16, short(value), anchor=anchor, kind="quiet")]
    parts += [label(WIDTH / 2, bottom + 34, "times the median", anchor="middle", kind="quiet")]
    return picture(figure, bottom + 42, *parts)


def _intervals(figure: Intervals) -> Markup:
    return both_widths(figure, lambda width: _intervals_at(figure, width))


def _intervals_at(figure: Intervals, width: float) -> tuple[float, list[object]]:
    """Return the height and the parts; in the narrow form, a row's verdict is below its name."""
    ends = [end for row in figure.rows for end in (row.low, row.high, 1 / (1 + row.least), 1 + row.least)]
    marks = span(min([1.0, *ends]), max([1.0, *ends]), 6 if width == WIDE else 4)
    below = 0 if width == WIDE else _LEGEND_ROW
    high = _STRIP_ROW + below + _ROW_GAP
    bottom = 26 + high * len(figure.rows)

    def x_of(value: float) -> float:
        return _STRIP_EDGE + (width - 2 * _STRIP_EDGE) * (value - marks[0]) / (marks[-1] - marks[0])

    parts: list[object] = []
    for value in marks:
        anchor = {marks[0]: "start", marks[-1]: "end"}.get(value, "middle")
        parts += [label(x_of(value), bottom + 16, short(value), anchor=anchor, kind="quiet")]
    for index, row in enumerate(figure.rows):
        top = 22 + high * index
        y = top + 30 + below
        # Draw the scale's lines only behind this row, so that they do not cross a name.
        parts += [line(x_of(value), y - 11, x_of(value), y + 11, "grid") for value in marks]
        parts += [line(x_of(1), y - 11, x_of(1), y + 11, "limit")]
        left, right = x_of(1 / (1 + row.least)), x_of(1 + row.least)
        parts += [bar(left, y - 8, right - left, 16, "zone")]
        parts += [line(x_of(row.low), y, x_of(row.high), y, f"span {row.kind}")]
        parts += [line(x_of(end), y - 6, x_of(end), y + 6, f"span {row.kind}") for end in (row.low, row.high)]
        parts += [el("circle", cx=at(x_of(row.estimate)), cy=at(y), r="5", class_=f"point {row.kind}")]
        parts += [label(_STRIP_EDGE, top + 16, fitted(row.name, 2 * _STRIP_NAME))]
        parts += [label(width - _STRIP_EDGE, top + 16 + below, row.label, anchor="end", kind="strong")]
    center = min(max(x_of(1), 4 * len(figure.reference)), width - 4 * len(figure.reference))
    parts += [label(center, 14, figure.reference, anchor="middle", kind="quiet")]
    return bottom + 24, parts


_LEAST_SPAN = 0.1  # of the median to either side; smaller changes do not count in most metrics


def _sides(figure: Sides) -> Markup:
    values = [value for _, side in figure.rows for value in side]
    # Equal launches must look equal: a scale of one percent would make a storm of what is noise.
    about = quantile(values, 0.5) * _LEAST_SPAN
    marks = span(min(*values, quantile(values, 0.5) - about), max(*values, quantile(values, 0.5) + about), 4)
    bottom = 8 + _STRIP_ROW * len(figure.rows)

    def x_of(value: float) -> float:
        return _STRIP_EDGE + (WIDTH - 2 * _STRIP_EDGE) * (value - marks[0]) / (marks[-1] - marks[0])

    parts: list[object] = [line(x_of(value), 8, x_of(value), bottom, "grid") for value in marks]
    for index, (name, side) in enumerate(figure.rows):
        top, middle = 8 + _STRIP_ROW * index, quantile(side, 0.5)
        text = f"{short(middle)} {figure.unit}"
        parts += [label(_STRIP_EDGE, top + 15, fitted(name, _STRIP_NAME))]
        parts += [label(WIDTH - _STRIP_EDGE, top + 15, text, anchor="end", kind="strong")]
        parts += [line(_STRIP_EDGE, top + 29, WIDTH - _STRIP_EDGE, top + 29, "thread")]
        parts += [marker(index, x_of(value), top + 29, 3.5) for value in side]
        parts += [line(x_of(middle), top + 20, x_of(middle), top + 38, "median")]
    for value in marks:
        anchor = {marks[0]: "start", marks[-1]: "end"}.get(value, "middle")
        parts += [label(x_of(value), bottom + 16, short(value), anchor=anchor, kind="quiet")]
    parts += [label(WIDTH / 2, bottom + 34, figure.unit, anchor="middle", kind="quiet")]
    return picture(figure, bottom + 42, *parts)


def _treemap(figure: Treemap) -> Markup:
    return both_widths(figure, lambda width: _treemap_at(figure, width))


def _treemap_at(figure: Treemap, width: float) -> tuple[float, list[object]]:
    """Return the height and the parts: the names of the groups, and the rectangles below them."""
    groups = list(dict.fromkeys(row.group for row in figure.rows if row.group))
    top = _LEGEND_ROW + 6 if groups else 0
    step = min(width / max(len(groups), 1), 130)
    parts: list[object] = []
    for index, group in enumerate(groups):
        parts += [bar(step * index, 0, 18, 18, f"tile t{index % 4}"), label(step * index + 24, 14, group)]
    rows = sorted(figure.rows, key=lambda row: -row.value)
    for row, (x, y, wide, high) in zip(rows, areas([row.value for row in rows], width, _TREEMAP), strict=True):
        color = f"t{groups.index(row.group) % 4}" if row.group else "rest" if groups else "t0"
        # The title is a tooltip for rectangles without a label; the table below the figure lists all names.
        parts += [el("rect", el("title", f"{row.name}: {row.label}"), x=at(x), y=at(top + y), width=at(wide),
                     height=at(high), class_=f"tile {color}")]  # fmt: skip
        room = int((wide - 12) / 7.5)
        if room >= max(len(row.label), _TILE_NAME) and high >= _TILE_LINE:
            parts += [label(x + 6, top + y + 18, fitted(row.name, room))]
            parts += [label(x + 6, top + y + 36, row.label)]
    return top + _TREEMAP, parts


def areas(values: Sequence[float], width: float, height: float) -> list[tuple[float, float, float, float]]:
    """Return x, y, width and height for each of the descending positive values (squarified treemap)."""
    rectangles: list[tuple[float, float, float, float]] = []
    x, y, wide, high = 0.0, 0.0, float(width), float(height)
    rest = list(values)
    while rest:
        side, scale = min(wide, high), wide * high / sum(rest)
        # The number of rectangles that, side by side along the shorter side, are the least elongated.
        count = min(range(1, len(rest) + 1), key=lambda many: _worst(rest[:many], side, scale))
        row, rest = rest[:count], rest[count:]
        deep = sum(row) * scale / side
        offset = 0.0
        for value in row:
            length = value * scale / deep
            rectangles.append((x, y + offset, deep, length) if wide >= high else (x + offset, y, length, deep))
            offset += length
        x, y, wide, high = (x + deep, y, wide - deep, high) if wide >= high else (x, y + deep, wide, high - deep)
    return rectangles


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """Return the worst aspect ratio of the rectangles in a strip (1 or more)."""
    deep = sum(row) * scale / side
    # The values descend, so the first or the last rectangle is the worst.
    lengths = [value * scale / deep for value in (row[0], row[-1])]
    return max(max(length / deep, deep / length) for length in lengths)


def _scale(rows: Sequence[Spread]) -> tuple[float, ...]:
    ratios = [value / quantile(row.values, 0.5) for row in rows for value in row.values]
    shown = (sum(scale[0] <= ratio <= scale[-1] for ratio in ratios) / len(ratios) for scale in _SCALES)
    return next((scale for scale, share in zip(_SCALES, shown, strict=True) if share >= _SHOWN), _SCALES[-1])


def at(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def ticks(top: float, count: int = 5) -> list[float]:
    """Return about `count` round values from 0 to the first one at or above `top`."""
    rough = (top if top > 0 else 1.0) / count
    power = 10.0 ** math.floor(math.log10(rough))
    # 1e-9 absorbs rounding errors, which could otherwise lead to the next larger step.
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    last = math.ceil(top / step - 1e-9) if top > 0 else count
    return [round(index * step, 10) for index in range(last + 1)]


def span(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round values from one at or below `low` to one at or above `high`."""
    # `ticks` rounds to ten digits, so the step between nearly equal values would be 0.
    step = ticks(high - low if high - low > _LEAST_SPAN else max(abs(high), _LEAST_SPAN), count)[1]
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(index * step, 12) for index in range(first, last + 1)]


def picture(figure: Figure, height: float, *parts: object) -> Markup:
    """Return a figure with its caption; the SVG has a text description for screen readers."""
    return el("figure", _caption(figure), _drawn(figure, WIDTH, height, parts))


def both_widths(figure: Titled, draw_at: Callable[[float], tuple[float, Sequence[object]]]) -> Markup:
    """Return a figure in two widths; the page shows the one that fits the screen.

    `draw_at` returns the height and the parts of the picture for a width, `WIDE` or `WIDTH`.
    """
    forms = [_drawn(figure, width, *draw_at(width), form=form) for width, form in ((WIDE, "wide"), (WIDTH, "narrow"))]
    return el("figure", _caption(figure), *forms, class_="wide")


def _caption(figure: Titled) -> Markup:
    better = el("span", f" {figure.better}", class_="better") if figure.better else None
    return el("figcaption", figure.title, better)


def _drawn(figure: Titled, width: float, height: float, parts: Sequence[object], *, form: str = "") -> Markup:
    """Return the SVG; `form` is empty if the figure has only one."""
    # Both widths are in one page, where an ID must be unique.
    ident = f"{figure.ident}-{form}" if form else figure.ident
    return el(
        "svg",
        el("title", figure.title, id=f"{ident}-t"),
        el("desc", figure.summary, id=f"{ident}-d"),
        *parts,
        viewBox=f"0 0 {at(width)} {at(height)}",
        role="img",
        class_=f"on-{form}" if form else None,
        aria_labelledby=f"{ident}-t",
        aria_describedby=f"{ident}-d",
    )


def label(x: float, y: float, text: str, *, anchor: str | None = None, kind: str | None = None) -> Markup:
    """Return a text; `anchor` is start (the default), middle or end."""
    return el("text", text, x=at(x), y=at(y), text_anchor=anchor, class_=kind)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return el("line", x1=at(x1), y1=at(y1), x2=at(x2), y2=at(y2), class_=kind)


def bar(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """Return a rectangle; a negative width or height becomes 0."""
    return el("rect", x=at(x), y=at(y), width=at(max(width, 0)), height=at(height), class_=kind)


def marker(index: int, x: float, y: float, size: float = 4.5) -> Markup:
    """Return the marker of a series."""
    kind = f"mark s{index % len(_MARKERS)}"
    shape = _MARKERS[index % len(_MARKERS)]
    if shape == "circle":
        return el("circle", cx=at(x), cy=at(y), r=at(size), class_=kind)
    if shape == "square":
        return bar(x - size, y - size, 2 * size, 2 * size, kind)
    far = size * 1.3
    corners = [(x, y - far), (x + far, y + far * 0.8), (x - far, y + far * 0.8)]
    if shape == "diamond":
        corners = [(x, y - far), (x + far, y), (x, y + far), (x - far, y)]
    return el("polygon", points=" ".join(f"{at(px)},{at(py)}" for px, py in corners), class_=kind)


def path(index: int, points: Sequence[tuple[float, float]]) -> Markup:
    """Return the line of a series through its points."""
    coordinates = " ".join(f"{at(x)},{at(y)}" for x, y in points)
    dashes = _DASHES[index % len(_DASHES)]
    return el("polyline", points=coordinates, class_=f"path s{index % len(_MARKERS)}", stroke_dasharray=dashes)


def legend(names: Sequence[str], top: float) -> list[Markup]:
    """Return one row per series: its marker on its line, and its name."""
    rows = []
    for index, name in enumerate(names):
        y = top + 18 * index
        rows += [path(index, [(4, y), (34, y)]), marker(index, 19, y), label(42, y + 4.5, name)]
    return rows
