"""The formats a report can be written in. Each is one function: a record's tree in, bytes out, nothing else touched."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from envkit.checks.reading import Tree

# Kind -> module and function, imported when asked for: most runs write none of them.
_WRITERS = {
    "json": ("envkit.report.plain_json", "render_json"),
    "junit": ("envkit.report.junit", "render_junit"),
    "md": ("envkit.report.markdown", "render_markdown"),
    "html": ("envkit.report.html.page", "render_html"),
    "sarif": ("envkit.report.sarif", "render_sarif"),
}
KINDS = tuple(_WRITERS)


def render(kind: str, record: Tree) -> bytes:
    """A record (`envkit.verify/1`) in the format `kind`, one of `KINDS`. The same record gives the same bytes."""
    module, name = _WRITERS[kind]
    writer: Callable[[Tree], bytes] = getattr(import_module(module), name)
    return writer(record)
