"""The formats of a report. Each is a pure function from a record to bytes."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from envkit.checks.reading import Tree

# Kind -> module and function, imported on use, because most runs write none of them.
_WRITERS = {
    "json": ("envkit.report.formats", "render_json"),
    "junit": ("envkit.report.junit", "render_junit"),
    "md": ("envkit.report.markdown", "render_markdown"),
    "html": ("envkit.report.html.page", "render_html"),
    "html-full": ("envkit.report.html.page", "render_html_full"),  # with identifiers of GPUs
}
KINDS = tuple(_WRITERS)


def render(kind: str, record: Tree) -> bytes:
    """Render a record (`envkit.verify/1`) in a format of `KINDS`. The same record gives the same bytes."""
    module, name = _WRITERS[kind]
    writer: Callable[[Tree], bytes] = getattr(import_module(module), name)
    return writer(record)


def pretty(tree: Tree) -> str:
    """Return indented JSON without a final newline.

    Control characters, bidirectional marks, lone surrogates and `##` are written as JSON escapes. Azure Pipelines
    runs what follows `##` anywhere in a line as a command.
    """
    text = json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    text = text.replace("##", "#\\u0023")
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def render_json(record: Tree) -> bytes:
    """Return the record as UTF-8 JSON with a final newline."""
    return (pretty(record) + "\n").encode()


def readable_json(tree: Tree) -> str:
    """Return indented JSON, escaped for an HTML element."""
    return html.escape(pretty(tree), quote=False)


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFFFF:  # noqa: PLR2004 - the last code point of the basic multilingual plane
        return f"\\u{code:04x}"
    # An escape in JSON has 16 bits, so other characters are a surrogate pair (RFC 8259, section 7).
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _plain(value: Any) -> Any:
    return dict(value)
