"""HTML and SVG built from Python. Everything that is not `Markup` is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from envkit.ground.text import clean

_VOID = frozenset({"br", "col", "link", "meta"})
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]{1,30}(?:=[\w.]{1,12})?)")


class Markup(str):
    """Text that is already HTML and is not escaped again."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return itself; Jinja calls this method on text that must not be escaped."""
        return self


def el(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    `Markup` children are inserted unchanged, lists are joined, None is skipped, anything else is escaped text. In
    attribute names, a trailing underscore is removed and others become hyphens: `class_`, `aria_label`. None and False
    omit an attribute; True writes it without a value.
    """
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{opened}>")
    return Markup(f"<{name}{opened}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Join children without a separator."""
    return Markup("".join(_child(child) for child in children))


def escaped(text: object) -> Markup:
    """Return a text on one line, escaped for an element or an attribute."""
    return Markup(html.escape(clean(text), quote=True))


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return join(child)
    # Keep a space at either end, which separates the text from its neighbors; `clean` would remove it.
    text = str(child)
    return f"{' ' * text.startswith(' ')}{escaped(text)}{' ' * (text.endswith(' ') and text != ' ')}"


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(value)}"'


def prose(text: object) -> Markup:
    """Return a sentence with the parts in backticks as code; with an odd number of backticks, all is plain text."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return el("span", text)
    return join(el("code" if index % 2 else "span", *_options(part)) for index, part in enumerate(parts))


def _options(text: str) -> Iterable[object]:
    """Keep an option such as `--shm-size=512m` on one line, because browsers break lines after hyphens."""
    return [el("span", part, class_="option") if index % 2 else part for index, part in enumerate(_OPTION.split(text))]


def breakable(text: object) -> Markup:
    """Return a text that may break after the separators of a path, name or version."""
    shown = str(escaped(text))
    # HTML entities contain none of these characters, so no entity is broken.
    return Markup(shown.replace("/", "/<wbr>").replace("_", "_<wbr>").replace(":", ":<wbr>"))
