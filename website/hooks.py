"""Hooks of the documentation's build: links out of the documentation become text, and no page asks another host."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

# MkDocs counts warnings of loggers below its own; with --strict they end the build.
_LOG = logging.getLogger("mkdocs.hooks.envkit")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!how-to/|start/)[^)\s]*\)")
_LOADED = re.compile(r"""<(?!a\b|meta\b)[a-z][^>]*?\s(?:src|href|data)=["']?((?:https?:)?//[^"'\s>]+)""", re.IGNORECASE)
_STYLED = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files of the repository outside docs/ by their text: the site has no such files."""
    if "/" in page.file.src_uri:
        return markdown
    return _OUTSIDE.sub(r"\1", markdown)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Warn about everything that a page or a style sheet would load from another host."""
    site = Path(config.site_dir)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        pattern = _STYLED if path.suffix == ".css" else _LOADED
        for address in sorted(set(pattern.findall(path.read_text(encoding="utf-8")))):
            _LOG.warning("%s loads %s from another host", path.relative_to(site), address)
