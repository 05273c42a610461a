"""The page: one file with its style and its few lines of script inside, allowed by their hashes and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import envkit
from envkit.checks.reading import Tree
from envkit.report.html.details import checks_section, environment_section, record_section, thresholds_section
from envkit.report.html.topic import topic_section
from envkit.report.html.verdict import problems_section, shapes, verdict_section
from envkit.report.markup import Markup, el, join
from envkit.report.measured import measured
from envkit.report.reading import title_of, word

SECTIONS = {
    "verdict": "Verdict",
    "problems": "What is wrong",
    "pictures": "Measured",
    "checks": "All checks",
    "environment": "Environment",
    "thresholds": "Thresholds",
    "record": "Record",
}


def render_html(record: Tree) -> bytes:
    """A record (`envkit.verify/1`) as one self-contained page. The same record gives the same bytes."""
    style, script = _asset("report.css"), _asset("report.js")
    name, image = title_of(record)
    title = f"{word(record['summary']['verdict'])}: {name or image}"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="generator", content=f"envkit {envkit.__version__}"),
        el("title", title),
        el("link", rel="icon", href="data:,"),
        el("style", style),
    )
    page = el("html", head, _body(record), el("script", script), lang="en")
    return f"<!doctype html>\n{page}\n".encode()


def _body(record: Tree) -> Markup:
    links = [el("li", el("a", name, href=f"#{ident}")) for ident, name in SECTIONS.items()]
    pictures = el(
        "section",
        el("h2", "What was measured", id="pictures-h"),
        [topic_section(*topic) for topic in measured(record["checks"])],
        id="pictures",
        aria_labelledby="pictures-h",
    )
    return el(
        "body",
        el("a", "Skip to the verdict", href="#main", class_="jump"),
        shapes(),
        el(
            "header",
            el("p", "envkit: report of a verification", class_="brand"),
            el("button", "Dark", type="button", id="theme", aria_pressed="false", hidden=True),
        ),
        el("nav", el("ul", links), aria_label="Sections"),
        el(
            "main",
            verdict_section(record),
            problems_section(record),
            pictures,
            checks_section(record),
            environment_section(record),
            thresholds_section(record),
            record_section(record),
            id="main",
            tabindex="-1",
        ),
        el(
            "footer",
            el("p", f"Written by envkit {envkit.__version__} from the record ", el("code", record["run"]["id"])),
        ),
    )


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _asset(name: str) -> Markup:
    """A file shipped beside this module: no part of it comes from a record."""
    return join([Markup((resources.files("envkit.report.html") / name).read_text(encoding="utf-8"))])
