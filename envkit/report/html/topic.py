"""One heading of the pictures: its figures, a remark, and the same numbers in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.report.html.tables import prose, table
from envkit.report.markup import Markup, el
from envkit.report.sheet import BUSY, Sheet


@dataclass(frozen=True, slots=True)
class Topic:
    """One heading of the pictures. `absent` says in one line why there is nothing to see."""

    ident: str
    title: str
    pictures: tuple[Markup, ...]
    numbers: Sequence[Markup]
    remark: str
    absent: str
    notes: Sequence[str] = ()
    advice: Sequence[str] = ()


def topic_section(topic: Topic) -> Markup:
    """A topic under its heading; where nothing was measured, one line. A table without a picture is not folded."""
    heading = el("h3", topic.title, id=f"{topic.ident}-h")
    if not topic.pictures and not topic.numbers:
        return el("section", heading, el("p", topic.absent, class_="absent"), id=topic.ident, class_="topic")
    return el(
        "section",
        heading,
        el("p", topic.remark, class_="remark"),
        el("ul", [el("li", prose(line)) for line in topic.notes], class_="notes") if topic.notes else None,
        el("ul", [el("li", prose(line)) for line in topic.advice], class_="advice") if topic.advice else None,
        el("div", topic.pictures, class_="pictures") if topic.pictures else None,
        _numbers(topic),
        id=topic.ident,
        aria_labelledby=f"{topic.ident}-h",
        class_="topic",
    )


def _numbers(topic: Topic) -> object:
    if topic.pictures and topic.numbers:
        return el("details", el("summary", "The numbers"), list(topic.numbers))
    return list(topic.numbers)


def sheet_table(sheet: Sheet) -> list[Markup]:
    """The table of a sheet; nothing where it has no row."""
    return [table(sheet.title, sheet.head, sheet.rows, left=sheet.left)] if sheet.rows else []


def remark(text: str, *, noisy: bool) -> str:
    """The remark, with a warning where the machine was busy."""
    return f"{text} {BUSY}" if noisy else text


def ratio(value: float | None) -> str:
    """A cell with two decimals; a dash where there is no number."""
    return "-" if value is None else f"{value:.2f}"
