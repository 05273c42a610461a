"""SVG in small pieces: coordinates, ticks, markers and the frame of every picture. Lengths are in user units."""

from __future__ import annotations

import math
from collections.abc import Sequence

from envkit.report.markup import Markup, el

WIDTH = 380
# Series differ by marker and dashes as well as by colour.
_MARKERS = ("circle", "square", "triangle", "diamond")
_DASHES = (None, "6 4", "2 3", "8 3 2 3")


def at(value: float) -> str:
    """A coordinate with one decimal, so that the same record gives the same bytes."""
    return f"{value:.1f}".removesuffix(".0")


def short(value: float) -> str:
    """A number in three significant digits, without an exponent where it can be read."""
    if value and not 1e-3 <= abs(value) < 1e6:  # noqa: PLR2004 - wider than that, an exponent reads better
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ticks(top: float, count: int = 5) -> list[float]:
    """Round values from 0 to the first one at or above `top`, about `count` of them."""
    rough = (top if top > 0 else 1.0) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    last = math.ceil(top / step - 1e-9) if top > 0 else count
    return [round(index * step, 10) for index in range(last + 1)]


def picture(ident: str, height: float, title: str, description: str, *parts: object) -> Markup:
    """A figure: its name, and the picture with what it shows in words for those who do not see it."""
    drawn = el(
        "svg",
        el("title", title, id=f"{ident}-t"),
        el("desc", description, id=f"{ident}-d"),
        *parts,
        viewBox=f"0 0 {WIDTH} {at(height)}",
        role="img",
        aria_labelledby=f"{ident}-t",
        aria_describedby=f"{ident}-d",
    )
    return el("figure", el("figcaption", title), drawn)


def label(x: float, y: float, text: str, *, anchor: str | None = None, kind: str | None = None) -> Markup:
    """A piece of text; `anchor` is start (the default), middle or end."""
    return el("text", text, x=at(x), y=at(y), text_anchor=anchor, class_=kind)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line."""
    return el("line", x1=at(x1), y1=at(y1), x2=at(x2), y2=at(y2), class_=kind)


def bar(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """A rectangle."""
    return el("rect", x=at(x), y=at(y), width=at(max(width, 0)), height=at(height), class_=kind)


def marker(index: int, x: float, y: float, size: float = 4.5) -> Markup:
    """The marker of a series."""
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
    """The line of a series through its points."""
    places = " ".join(f"{at(x)},{at(y)}" for x, y in points)
    dashes = _DASHES[index % len(_DASHES)]
    return el("polyline", points=places, class_=f"path s{index % len(_MARKERS)}", stroke_dasharray=dashes)


def legend(names: Sequence[str], top: float) -> list[Markup]:
    """One line per series: its marker on a piece of its line, and its name."""
    rows = []
    for index, name in enumerate(names):
        y = top + 18 * index
        rows += [path(index, [(4, y), (34, y)]), marker(index, 19, y), label(42, y + 4.5, name)]
    return rows
