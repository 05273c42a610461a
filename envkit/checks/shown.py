"""The description of what a report shows of one check. Text, Markdown and HTML are made from the same one."""

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
    """A table and what it says in words. The first `left` columns are text, the others numbers.

    `noisy` says that the machine was busy while some of the numbers were taken.
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
    """One measured number for the head of a page: what it is, the number with its unit, and what it compares with."""

    title: str
    value: str
    note: str
    better: str = ""


HIGHER, LOWER = "higher is better", "lower is better"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def fill_of(precision: str) -> str:
    """Return the fill of a precision: the same in every figure."""
    return f"p-{precision}" if precision in PRECISIONS else "s0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines over `steps`, evenly spaced and named by `across`; `up` names the values.

    `limits` are horizontal lines with their names. `floors` are values that one step must not fall below, each with
    its name and step. `marked` is a step to point at. `told` says what the figure shows to those who do not see it.
    """

    ident: str
    title: str
    told: str
    steps: Sequence[int]
    across: str
    up: str
    series: Sequence[tuple[str, Points]]
    limits: Sequence[tuple[str, float]] = ()
    floors: Sequence[tuple[str, int, float]] = ()
    marked: int | None = None
    better: str = ""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Bars from 0, with a line at 1 that `reference` names.

    `fills` are the fills of the rows, of which `floors` are (row, what the mark means, value).
    """

    ident: str
    title: str
    told: str
    rows: Sequence[tuple[str, float]]
    reference: str
    fills: Sequence[str] = ()
    floors: Sequence[tuple[int, str, float]] = ()
    better: str = ""


@dataclass(frozen=True, slots=True)
class Values:
    """Bars from 0 upwards, each with its value in `unit`; `limits` are vertical lines with their names."""

    ident: str
    title: str
    told: str
    rows: Sequence[tuple[str, float]]
    unit: str
    fills: Sequence[str] = ()
    floors: Sequence[tuple[int, str, float]] = ()
    limits: Sequence[tuple[str, float]] = ()
    better: str = ""


@dataclass(frozen=True, slots=True)
class Errors:
    """Dots on a logarithmic scale of whole powers of ten; the values are positive."""

    ident: str
    title: str
    told: str
    rows: Sequence[tuple[str, float]]
    fills: Sequence[str] = ()
    better: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """Stacked bars on one scale in `unit`; a part is (name, value, fill), a fill 'hatched', 's0', 's1' or 's2'."""

    ident: str
    title: str
    told: str
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
    """Samples as dots over a box of their middle half, each row relative to its own median."""

    ident: str
    title: str
    told: str
    rows: Sequence[Spread]
    better: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its confidence interval; from `least` (a share) on, a change in either direction counts."""

    name: str
    low: float
    estimate: float
    high: float
    least: float
    told: str  # the verdict
    kind: str  # 'fail' | 'pass' | 'unclear' | 'skip'


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of ratios on one scale with a line at 1, which `reference` names; what does not count is shaded."""

    ident: str
    title: str
    told: str
    rows: Sequence[Interval]
    reference: str
    better: str = ""


@dataclass(frozen=True, slots=True)
class Sides:
    """Values of several sides as dots on one scale in `unit`, with the median of each."""

    ident: str
    title: str
    told: str
    rows: Sequence[tuple[str, Sequence[float]]]
    unit: str
    better: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """One rectangle of a treemap: its value is positive, `told` is the value in words."""

    name: str
    value: float
    told: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Treemap:
    """Rectangles whose areas are their values. Those of one group have one color, which the figure explains."""

    ident: str
    title: str
    told: str
    rows: Sequence[Area]
    better: str = ""


class Titled(Protocol):
    """What every figure has: an ID of its own in the page, its title, what it shows in words, and its direction."""

    @property
    def ident(self) -> str:
        """The ID in the page."""

    @property
    def title(self) -> str:
        """What is drawn."""

    @property
    def told(self) -> str:
        """What it shows, for those who do not see it."""

    @property
    def better(self) -> str:
        """`HIGHER`, `LOWER`, or nothing."""


Figure = Lines | Ratios | Values | Errors | Parts | Strips | Intervals | Sides | Treemap


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One heading of a report. A check that measured nothing has no sheet and no tile.

    `details` are longer tables for a page that can fold them; there they stand in place of the sheets. `remark` says
    how to read the figures.
    """

    ident: str
    title: str
    sheets: tuple[Sheet, ...] = ()
    figures: tuple[Figure, ...] = ()
    details: tuple[Sheet, ...] = ()
    remark: str = ""
    tiles: tuple[Tile, ...] = ()


Show = Callable[[Sequence[Tree]], Shown]
"""`show` of a check: from the findings of this check in a record, in their order."""


def tables(*sheets: Sheet) -> tuple[Sheet, ...]:
    """Return those sheets that have a row."""
    return tuple(sheet for sheet in sheets if sheet.rows)


def cell(value: float | None, form: str, unit: str = "") -> str:
    """Return a number as a table shows it; a dash where there is none."""
    return "-" if value is None else f"{value:{form}}{unit}"


def short(value: float) -> str:
    """Return a number in three significant digits, without an exponent where it can be read."""
    if value and not 1e-3 <= abs(value) < 1e6:  # noqa: PLR2004 - wider than that, an exponent reads better
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
