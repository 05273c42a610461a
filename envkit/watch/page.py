"""The page of an observed training: the answer, where a step goes, the timeline, each limit, and the record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import envkit
from envkit.checks.shown import Parts
from envkit.report.formats import readable_json
from envkit.report.html.assets import asset, policy
from envkit.report.html.charts import draw
from envkit.report.html.markup import Markup, breakable, el, join
from envkit.watch import timeline
from envkit.watch.judge import Answer, Finding, Judgment, milliseconds
from envkit.watch.model import Record
from envkit.watch.text import gain

_STYLE = """
.wide { max-width: none; }
.judged { fill: var(--box); fill-opacity: .35; }
.fill.s3 { fill: var(--s3); }
.area { fill: var(--s0); fill-opacity: .55; stroke: var(--s0); stroke-width: 1; }
.gain { font-weight: 600; }
"""
_SECTIONS = {"verdict": "Answer", "step": "A step", "timeline": "Timeline", "limits": "Limits", "record": "Record"}
_KINDS = {
    "waiting for data": "hatched",
    "copies to the GPU": "s3",
    "communication": "s1",
    "optimizer": "s2",
    "computing": "s0",
}


def render_html(record: Record, judgment: Judgment) -> bytes:
    """Return a record and its judgment as one self-contained page. The same record gives the same bytes."""
    style, script = asset("report.css") + _STYLE, asset("report.js")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy(style, script)),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="generator", content=f"envkit {envkit.__version__}"),
        el("title", f"{judgment.headline}"),
        el("link", rel="icon", href="data:,"),
        el("style", Markup(style)),
    )
    links = [el("li", el("a", title, href=f"#{ident}")) for ident, title in _SECTIONS.items()]
    body = el(
        "body",
        el("a", "Skip to the answer", href="#main", class_="jump"),
        el(
            "header",
            el("p", "envkit watch report", class_="brand"),
            el("button", "Dark", type="button", id="theme", aria_pressed="false", hidden=True),
        ),
        el("nav", el("ul", links), aria_label="Sections"),
        el("main", _answer(record, judgment), *_parts(record, judgment), id="main", tabindex="-1"),
        el("footer", el("p", f"Written by envkit {envkit.__version__}")),
        el("script", Markup(script)),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n".encode()


def _answer(record: Record, judgment: Judgment) -> Markup:
    found = judgment.measures
    kind = {Answer.FOUND: "warn", Answer.NOTHING: "pass"}.get(judgment.answer, "inconclusive")
    facts = [f"{record.seconds:.1f} s", record.started]
    if found.steps:
        facts.insert(0, f"{found.steps} {found.unit}s of {milliseconds(found.step_s)}")
    if found.ranks > 1:
        facts.append(f"{found.ranks} ranks")
    if record.exit_code is not None:
        facts.append(f"exit code {record.exit_code}")
    facts.append(f"{record.machine.cpus:g} CPUs")
    facts += [str(card.get("name")) for card in record.machine.gpus] or ["no GPU"]
    return el(
        "section",
        el("h1", judgment.headline),
        el("p", el("code", breakable(" ".join(record.command)))),
        el("p", " · ".join(facts), class_="facts"),
        id="verdict",
        aria_label="Answer",
        class_=f"verdict {kind}",
    )


def _parts(record: Record, judgment: Judgment) -> Iterable[Markup]:
    found = judgment.measures
    if found.steps:
        yield _section("step", "Where a step goes", draw(_step(judgment)))
    drawn = timeline.draw(record)
    if drawn is not None:
        note = el("p", "The shaded time is what was judged: after the warm-up, to the last step.", class_="remark")
        yield _section("timeline", "Timeline", note, drawn)
    findings = [_finding(one) for one in judgment.findings]
    none = el("p", judgment.headline, class_="absent")
    yield _section("limits", "What holds it back, and what to change", *(findings or [none]))
    raw = el(
        "pre",
        Markup(readable_json({**record.to_json(), "judgment": judgment.to_json()})),
        id="raw",
        tabindex="0",
        aria_label="The record as JSON",
    )
    save = el("button", "Save the record", type="button", id="save", hidden=True)
    yield _section("record", "The record", save, el("details", el("summary", "Show the record"), raw))


def _step(judgment: Judgment) -> Parts:
    found = judgment.measures
    parts = [(name, share * found.step_s * 1e3, _KINDS[name]) for name, share in found.parts]
    told = ", ".join(f"{name} {share:.0%}" for name, share in found.parts)
    return Parts("step-parts", f"One {found.unit}", told, [(f"{milliseconds(found.step_s)}", parts)], "ms")


def _finding(finding: Finding) -> Markup:
    changes = [el("li", el("span", one.text), *_brings(gain(one), one.reason)) for one in finding.advice]
    return el(
        "article",
        el("h3", f"{finding.title}: {finding.headline}"),
        el("p", finding.cause),
        el("ul", [el("li", text) for text in finding.evidence], class_="notes"),
        el("ul", changes, class_="advice"),
        class_="problem warn",
    )


def _brings(faster: str, reason: str) -> Sequence[Markup]:
    if not faster and not reason:
        return ()
    return (
        el("br"),
        join(
            [
                el("span", faster, class_="gain"),
                el("span", f": {reason}" if faster and reason else reason, class_="quiet"),
            ]
        ),
    )


def _section(ident: str, title: str, *children: object) -> Markup:
    return el("section", el("h2", title, id=f"{ident}-h"), *children, id=ident, aria_labelledby=f"{ident}-h")
