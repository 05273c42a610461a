"""What a report shows of a check, independent of the format: text, Markdown and HTML are made from the same value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from envkit.checks.reading import Tree

Points = Mapping[int, float]
"""Value by step."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with its notes. The first `left` columns are text, the others numbers.

    `noisy` says that the machine was busy while some of the numbers were measured.
    """

    title: str
    head: tuple[str, ...]
    rows: list[list[str]]
    left: int = 1
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """One measured number for the top of a page: what it is, the number with its unit, and what to compare it with."""

    title: str
    value: str
    note: str
    better: str = ""


HIGHER, LOWER = "higher is better", "lower is better"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def fill_of(precision: str) -> str:
    """Return the fill of a precision, which is the same in every figure."""
    return f"p-{precision}" if precision in PRECISIONS else "s0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines over evenly spaced `steps`.

    `limits` are horizontal lines with their names. `floors` are values that one step must not fall below, each with
    its name and step. `marked` is a step to highlight. `summary` is the text alternative of the figure.
    """

    ident: str
    title: str
    summary: str
    steps: Sequence[int]
    x_label: str
    y_label: str
    series: Sequence[tuple[str, Points]]
    limits: Sequence[tuple[str, float]] = ()
    floors: Sequence[tuple[str, int, float]] = ()
    marked: int | None = None
    better: str = ""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Bars from 0, with a line at 1 called `reference`.

    `fills` has the fill of each row. `floors` are marks on rows: (index of the row, what the mark means, value).
    """

    ident: str
    title: str
    summary: str
    rows: Sequence[tuple[str, float]]
    reference: str
    fills: Sequence[str] = ()
    floors: Sequence[tuple[int, str, float]] = ()
    better: str = ""


@dataclass(frozen=True, slots=True)
class Values:
    """Bars from 0, each with its value in `unit`; `limits` are vertical lines with their names."""

    ident: str
    title: str
    summary: str
    rows: Sequence[tuple[str, float]]
    unit: str
    fills: Sequence[str] = ()
    floors: Sequence[tuple[int, str, float]] = ()
    limits: Sequence[tuple[str, float]] = ()
    better: str = ""


@dataclass(frozen=True, slots=True)
class Errors:
    """Dots on a logarithmic scale that ends at whole powers of ten. All values are positive."""

    ident: str
    title: str
    summary: str
    rows: Sequence[tuple[str, float]]
    fills: Sequence[str] = ()
    better: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """Stacked bars on one scale in `unit`; a part is (name, value, fill), a fill 'hatched', 's0', 's1' or 's2'."""

    ident: str
    title: str
    summary: str
    rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]]
    unit: str
    better: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """The samples of one finding."""

    id: str
    values: tuple[float, ...]
    unit: str
    noisy: bool


@dataclass(frozen=True, slots=True)
class Strips:
    """Samples as dots over a box of their middle half. Each row is relative to its own median."""

    ident: str
    title: str
    summary: str
    rows: Sequence[Spread]
    better: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its confidence interval. A change in either direction counts from `least` (a share) on."""

    name: str
    low: float
    estimate: float
    high: float
    least: float
    label: str  # the verdict in words
    kind: str  # 'fail' | 'pass' | 'unclear' | 'skip'


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of ratios on one scale, with a line at 1 called `reference`. Changes that do not count are shaded."""

    ident: str
    title: str
    summary: str
    rows: Sequence[Interval]
    reference: str
    better: str = ""


@dataclass(frozen=True, slots=True)
class Sides:
    """Values of several sides as dots on one scale in `unit`, with the median of each."""

    ident: str
    title: str
    summary: str
    rows: Sequence[tuple[str, Sequence[float]]]
    unit: str
    better: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """One rectangle of a treemap. `value` is positive; `label` is the value with its unit."""

    name: str
    value: float
    label: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Treemap:
    """Rectangles whose areas are their values. A group has one color, which the legend explains."""

    ident: str
    title: str
    summary: str
    rows: Sequence[Area]
    better: str = ""


class Titled(Protocol):
    """What every figure has."""

    @property
    def ident(self) -> str:
        """Its ID, unique in the page."""

    @property
    def title(self) -> str:
        """What is drawn."""

    @property
    def summary(self) -> str:
        """Its text alternative."""

    @property
    def better(self) -> str:
        """`HIGHER`, `LOWER` or empty."""


Figure = Lines | Ratios | Values | Errors | Parts | Strips | Intervals | Sides | Treemap


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One section of a report. A check that measured nothing has no sheet and no tile.

    `details` are longer tables, which replace the sheets on a page that can fold them. `remark` says how to read the
    figures.
    """

    ident: str
    title: str
    sheets: tuple[Sheet, ...] = ()
    figures: tuple[Figure, ...] = ()
    details: tuple[Sheet, ...] = ()
    remark: str = ""
    tiles: tuple[Tile, ...] = ()


Show = Callable[[Sequence[Tree]], Shown]
"""The type of a check's `show`, which gets the findings of its check in the order of the record."""


def tables(*sheets: Sheet) -> tuple[Sheet, ...]:
    """Return the sheets that have rows."""
    return tuple(sheet for sheet in sheets if sheet.rows)


def cell(value: float | None, form: str, unit: str = "") -> str:
    """Return a number as a table shows it, or a dash for None."""
    return "-" if value is None else f"{value:{form}}{unit}"


def short(value: float) -> str:
    """Return a number with three significant digits, with an exponent only if it is very small or very large."""
    if value and not 1e-3 <= abs(value) < 1e6:  # noqa: PLR2004 - outside of that an exponent reads better
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
