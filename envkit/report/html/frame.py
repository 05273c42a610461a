"""The frame of all pages: base template, style, script and common values."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2

import envkit
from envkit.checks.reading import Tree
from envkit.report.formats import readable_json
from envkit.report.html.markup import Markup, breakable, escaped, prose
from envkit.report.reading import weight, word

_ABOUT = "M4.4 9c1.2-2 2.4-2 3.6-1s2.4 1 3.6-1"  # a tilde; a question mark in a diamond is U+FFFD, a broken character
_HALF = "M8 1a7 7 0 100 14A7 7 0 008 1zM8 3a5 5 0 010 10z"  # a ring whose left half is full
# Each verdict has its own shape in a 16 x 16 view box, so that color is not needed; the word is always next to it.
SHAPES = {
    "PASS": ("M8 1a7 7 0 100 14A7 7 0 008 1z", "M4.5 8.3l2.4 2.4 4.6-5"),
    "WARN": ("M8 1.2l7.2 13.3H.8z", "M8 6v4M8 11.6v1"),
    "FAIL": ("M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4"),
    "ERROR": ("M1 1h14v14H1z", "M8 4v5M8 10.8v1.2"),
    "INCONCLUSIVE": ("M8 .2L15.8 8 8 15.8.2 8z", _ABOUT),
    "SKIP": ("M8 1a7 7 0 100 14A7 7 0 008 1z", "M4.8 8h6.4"),
    "NOT_VERIFIED": (_HALF, ""),
}
_DEEPEST = 6  # levels of a nested value; deeper ones are shown as text
_WHOLE = 1e15  # larger floats have no exact fraction


def render_page(
    template: str, *, title: str, brand: str, sections: Mapping[str, str], document: Tree, **view: Any
) -> bytes:
    """Render a page; `template` extends base.html. The same values give the same bytes.

    `sections` has the titles for the table of contents by section ID. `document` is the JSON that the page can save.
    """
    style, script = _asset("report.css"), _asset("report.js")
    frame = {
        "brand": brand,
        "policy": _policy(style, script),
        "raw": Markup(readable_json(document)),
        "schema": document.get("schema"),
        "script": Markup(script),
        "sections": sections,
        "shapes": SHAPES,
        "style": Markup(style),
        "title": title,
        "version": envkit.__version__,
    }
    text = _environment().get_template(template).render(frame | view)
    return f"{text.strip()}\n".encode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        finalize=_printed,
        # A missing value is an error of the template, not an empty text.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "prose": prose, "scalar": _scalar}
    environment.tests |= {"filled": _filled, "nested": _nested}
    known: Callable[[str], str] = lambda verdict: verdict if verdict in SHAPES else "ERROR"  # noqa: E731
    environment.globals |= {"DEEPEST": _DEEPEST, "known": known, "weight": weight, "word": word}
    return environment


def _printed(value: Any) -> Any:
    """Return markup unchanged and any other value of the template escaped."""
    return value if hasattr(value, "__html__") else escaped(value)


def _filled(value: Any) -> bool:
    """Return whether there is something to show; 0 and False are shown."""
    return value is not None and value not in ("", [], {})


def _nested(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)


def _scalar(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.6g}"
    return str(value)


def _asset(name: str) -> str:
    """Return the text of a file in this package."""
    return (resources.files("envkit.report.html") / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this inline style and script."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            # base.html has an empty icon as a data URL, so that browsers do not request /favicon.ico.
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
