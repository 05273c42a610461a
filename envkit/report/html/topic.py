"""One heading of the pictures: its figures, a remark, and the same numbers in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.report.markup import Markup, el

_BUSY = "The machine was busy while some of this was timed; take it as a hint."


@dataclass(frozen=True, slots=True)
class Topic:
    """One heading of the pictures. `absent` says in one line why there is nothing to see."""

    ident: str
    title: str
    pictures: tuple[Markup, ...]
    numbers: Sequence[Markup]
    remark: str
    absent: str


def topic_section(topic: Topic) -> Markup:
    """A topic under its heading; where nothing was measured, one line."""
    heading = el("h3", topic.title, id=f"{topic.ident}-h")
    if not topic.pictures:
        return el("section", heading, el("p", topic.absent, class_="absent"), id=topic.ident, class_="topic")
    return el(
        "section",
        heading,
        el("p", topic.remark, class_="remark"),
        el("div", topic.pictures, class_="pictures"),
        el("details", el("summary", "The numbers"), list(topic.numbers)) if topic.numbers else None,
        id=topic.ident,
        aria_labelledby=f"{topic.ident}-h",
        class_="topic",
    )


def remark(text: str, *, noisy: bool) -> str:
    """The remark, with a warning where the machine was busy."""
    return f"{text} {_BUSY}" if noisy else text


def ratio(value: float | None) -> str:
    """A cell with two decimals; a dash where there is no number."""
    return "-" if value is None else f"{value:.2f}"
