"""Tables and lists of terms that read well with a screen reader and on a narrow screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envkit.report.markup import Markup, el, escaped

_DEEPEST = 6
_WHOLE = 1e15


def stacked(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """A table of text whose cells lie below each other on a narrow screen.

    What is laid out as blocks is no table to a screen reader any more, so each part says what it is.
    """
    body = [
        el(
            "tr",
            el("th", row[0], scope="row", role="rowheader"),
            [el("td", cell, role="cell", data_label=name) for name, cell in zip(head[1:], row[1:], strict=True)],
            role="row",
        )
        for row in rows
    ]
    columns = el("tr", [el("th", name, scope="col", role="columnheader") for name in head], role="row")
    groups = [el("thead", columns, role="rowgroup"), el("tbody", body, role="rowgroup")]
    return el("table", el("caption", caption), groups, class_="stacked", role="table")


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> Markup:
    """A table with its caption; the first cell names the row, and the first `left` columns are text.

    It scrolls inside its own frame where it is wider than the screen; the keyboard can reach that frame.
    """
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            [el("td", cell, class_=None if index < left else "number") for index, cell in enumerate(row[1:], 1)],
        )
        for row in rows
    ]
    columns = [
        el("th", name, scope="col", class_=None if index < left else "number") for index, name in enumerate(head)
    ]
    whole = el("table", el("caption", caption), el("thead", el("tr", columns)), el("tbody", body))
    return el("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def terms(pairs: Mapping[str, Any], depth: int = 0) -> Markup:
    """Names and values, nested as deep as they are; what has no value is left out."""
    shown = {name: value for name, value in pairs.items() if value is not None and value not in ("", [], {})}
    return el("dl", [el("div", el("dt", name), el("dd", _value(value, depth))) for name, value in shown.items()])


def _value(value: Any, depth: int) -> object:
    if isinstance(value, Mapping):
        return terms(value, depth + 1) if depth < _DEEPEST else str(value)
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            return el("ul", [el("li", _value(item, depth + 1)) for item in value]) if depth < _DEEPEST else str(value)
        return breakable(", ".join(str(item) for item in value))
    return _scalar(value)


def _scalar(value: Any) -> Markup:
    if isinstance(value, bool):
        return breakable("yes" if value else "no")
    if isinstance(value, float):
        return breakable(f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.6g}")
    return breakable(str(value))


def prose(text: object) -> list[Markup]:
    """A sentence whose parts in backticks are commands or names; a backtick without its partner is only that."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return [el("span", text)]
    return [el("code", part) if index % 2 else el("span", part) for index, part in enumerate(parts)]


def breakable(text: object) -> Markup:
    """A text that may break after the characters that join a path, a name or a version."""
    shown = str(escaped(text))
    # The slash of an entity does not exist, so only real ones are met.
    return Markup(shown.replace("/", "/<wbr>").replace("_", "_<wbr>").replace(":", ":<wbr>"))
