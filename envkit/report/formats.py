"""The formats a report can be written in. Each is one function: a record's tree in, bytes out, nothing else touched."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from envkit.checks.reading import Tree

# Kind -> module and function, imported when asked for: most runs write none of them.
_WRITERS = {
    "json": ("envkit.report.formats", "render_json"),
    "junit": ("envkit.report.junit", "render_junit"),
    "md": ("envkit.report.markdown", "render_markdown"),
    "html": ("envkit.report.html.page", "render_html"),
    "html-full": ("envkit.report.html.page", "render_html_full"),  # with identifiers of GPUs
    "sarif": ("envkit.report.sarif", "render_sarif"),
}
KINDS = tuple(_WRITERS)


def render(kind: str, record: Tree) -> bytes:
    """A record (`envkit.verify/1`) in the format `kind`, one of `KINDS`. The same record gives the same bytes."""
    module, name = _WRITERS[kind]
    writer: Callable[[Tree], bytes] = getattr(import_module(module), name)
    return writer(record)


def pretty(tree: Tree) -> str:
    """Indented JSON without a final newline.

    What no reader should meet raw (controls, bidirectional marks, lone surrogates, and `##`, after which Azure looks
    for a command anywhere in a line) is written as an escape, which means the same.
    """
    text = json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    text = text.replace("##", "#\\u0023")
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def render_json(record: Tree) -> bytes:
    """The record itself as UTF-8 JSON with a final newline."""
    return (pretty(record) + "\n").encode()


def readable_json(tree: Tree) -> str:
    """The same for an element of a page."""
    return html.escape(pretty(tree), quote=False)


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFFFF:  # noqa: PLR2004 - the end of the basic plane
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _plain(value: Any) -> Any:
    return dict(value)
