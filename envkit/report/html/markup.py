"""HTML and SVG built from Python. Everything that is not `Markup` is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from envkit.ground.text import clean

_VOID = frozenset({"br", "col", "link", "meta"})
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]{1,30}(?:=[\w.]{1,12})?)")


class Markup(str):
    """Text that is HTML already and is taken as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return itself: what Jinja asks a text that it must not escape."""
        return self


def el(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element.

    A child that is a `Markup` stays, a list is laid end to end, None is nothing, everything else is text and escaped.
    An attribute's trailing underscore goes and the others become hyphens: `class_`, `aria_label`. None and False
    leave an attribute out, True writes it without a value.
    """
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{opened}>")
    return Markup(f"<{name}{opened}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Children end to end."""
    return Markup("".join(_child(child) for child in children))


def escaped(text: object) -> Markup:
    """Return a foreign text on one line, escaped for an element or an attribute."""
    return Markup(html.escape(clean(text), quote=True))


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return join(child)
    # Blanks at the ends part a text from its neighbors; `clean` would take them.
    text = str(child)
    return f"{' ' * text.startswith(' ')}{escaped(text)}{' ' * (text.endswith(' ') and text != ' ')}"


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(value)}"'


def prose(text: object) -> Markup:
    """A sentence whose parts in backticks are commands or names; a backtick without its partner is only that."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return el("span", text)
    return join(el("code" if index % 2 else "span", *_options(part)) for index, part in enumerate(parts))


def _options(text: str) -> Iterable[object]:
    """Keep an option such as `--shm-size=512m` on one line: browsers break lines after hyphens."""
    return [el("span", part, class_="option") if index % 2 else part for index, part in enumerate(_OPTION.split(text))]


def breakable(text: object) -> Markup:
    """A text that may break after the characters that join a path, a name or a version."""
    shown = str(escaped(text))
    # The slash of an entity does not exist, so only real ones are met.
    return Markup(shown.replace("/", "/<wbr>").replace("_", "_<wbr>").replace(":", ":<wbr>"))
