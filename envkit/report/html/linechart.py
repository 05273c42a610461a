"""Lines over named steps, such as bandwidth over sizes, with horizontal lines for limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envkit.report.html.shapes import WIDTH, bar, label, legend, line, marker, path, picture, short, ticks
from envkit.report.markup import Markup

_LEFT, _RIGHT, _PLOT = 44, 14, 190
_LEGEND_ROW = 18
_FLOOR = 16  # half the width of a floor

Points = Mapping[int, float]
"""Value by step."""


def line_chart(
    ident: str,
    title: str,
    description: str,
    *,
    steps: Sequence[int],
    across: str,
    up: str,
    series: Sequence[tuple[str, Points]],
    limits: Sequence[tuple[str, float]] = (),
    floors: Sequence[tuple[str, int, float]] = (),
    marked: int | None = None,
) -> Markup:
    """Draw the series over `steps`, evenly spaced and named by `across`; `up` names the values.

    `limits` are horizontal lines with their names. `floors` are values that one step must not fall below, each with
    its name and step: they are drawn at that step alone. `marked` is a step to point at. The lines run from 0
    upwards, so that a length is a value.
    """
    top = 14 + _LEGEND_ROW * len(series) + 24
    values = [value for _, points in series for value in points.values()] + [value for _, value in limits]
    values += [value for _, _, value in floors]
    scale = ticks(max(values, default=1.0))
    bottom = top + _PLOT

    def x_of(step: int) -> float:
        room = WIDTH - _LEFT - _RIGHT - 40
        return _LEFT + 20 + room * (steps.index(step) / (len(steps) - 1) if len(steps) > 1 else 0.5)

    def y_of(value: float) -> float:
        return bottom - _PLOT * value / scale[-1]

    parts: list[object] = [*legend([name for name, _ in series], 12), label(2, top - 16, up, kind="quiet")]
    for value in scale:
        parts += [line(_LEFT, y_of(value), WIDTH - _RIGHT, y_of(value), "grid")]
        parts += [label(_LEFT - 6, y_of(value) + 4.5, short(value), anchor="end", kind="quiet")]
    for step in steps:
        parts += [label(x_of(step), bottom + 18, str(step), anchor="middle", kind="quiet")]
    parts += [label((_LEFT + WIDTH - _RIGHT) / 2, bottom + 36, across, anchor="middle", kind="quiet")]
    if marked is not None and marked in steps:
        parts += [line(x_of(marked), top, x_of(marked), bottom, "marked")]
    for name, value in limits:
        parts += [line(_LEFT, y_of(value), WIDTH - _RIGHT, y_of(value), "limit")]
        parts += [label(WIDTH - _RIGHT, y_of(value) - 5, name, anchor="end", kind="strong")]
    for name, step, value in floors:
        left, right = x_of(step) - _FLOOR, min(x_of(step) + _FLOOR, WIDTH - _RIGHT)
        parts += [bar(left, y_of(value), right - left, bottom - y_of(value), "floor-zone")]
        parts += [line(left, y_of(value), right, y_of(value), "floor")]
        parts += [label(right, y_of(value) - 6, name, anchor="end", kind="strong")]
    for index, (_, points) in enumerate(series):
        places = [(x_of(step), y_of(points[step])) for step in steps if step in points]
        parts += [path(index, places), *(marker(index, x, y) for x, y in places)]
    return picture(ident, bottom + 44, title, description, *parts)
