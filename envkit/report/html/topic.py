"""One heading of what was measured: its figures, a remark, and the same numbers in a table."""

from __future__ import annotations

from envkit.checks.shown import Shown
from envkit.report.html.charts import draw
from envkit.report.html.tables import prose, table
from envkit.report.markup import Markup, el
from envkit.report.measured import BUSY


def topic_section(topic: Shown, absent: str) -> Markup:
    """A topic under its heading; where nothing was measured, one line. A table without a picture is not folded."""
    heading = el("h3", topic.title, id=f"{topic.ident}-h")
    numbers = topic.details or topic.sheets
    if not topic.figures and not numbers:
        return el("section", heading, el("p", absent, class_="absent"), id=topic.ident, class_="topic")
    noisy = any(sheet.noisy for sheet in (*topic.sheets, *topic.details))
    remark = " ".join(filter(None, (topic.remark, BUSY if noisy else "")))
    notes = [el("li", prose(line)) for sheet in topic.sheets for line in sheet.notes]
    advice = [el("li", prose(line)) for sheet in topic.sheets for line in sheet.advice]
    drawn = [table(sheet.title, sheet.head, sheet.rows, left=sheet.left) for sheet in numbers]
    return el(
        "section",
        heading,
        el("p", remark, class_="remark") if remark else None,
        el("ul", notes, class_="notes") if notes else None,
        el("ul", advice, class_="advice") if advice else None,
        el("div", [draw(figure) for figure in topic.figures], class_="pictures") if topic.figures else None,
        el("details", el("summary", "The numbers"), drawn) if topic.figures and drawn else drawn,
        id=topic.ident,
        aria_labelledby=f"{topic.ident}-h",
        class_="topic",
    )
