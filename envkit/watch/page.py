"""The HTML page of an observed training: the answer, the parts of a step, the timeline, each limit, the record."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.sheet import LOWER, Parts, Tile
from envkit.report.environment import without_identifiers
from envkit.report.html.charts import draw
from envkit.report.html.frame import render_page
from envkit.report.html.markup import Markup, el, join
from envkit.watch import timeline
from envkit.watch.judge import Answer, Finding, Judgment, milliseconds
from envkit.watch.model import Record
from envkit.watch.text import gain

_SECTIONS = {"verdict": "Answer", "limits": "Limits", "step": "A step", "timeline": "Timeline", "record": "Record"}
_KINDS = {
    "waiting for data": "hatched",
    "copies to the GPU": "s3",
    "communication": "s1",
    "compiling": "rest",
    "waiting for something else": "hatched",
    "optimizer": "s2",
    "computing": "s0",
}


def render_html(record: Record, judgment: Judgment) -> bytes:
    """Return a record and its judgment as one self-contained page, without GPU IDs.

    The same record gives the same bytes.
    """
    measures, drawn = judgment.measures, timeline.draw(record)
    shown = {"step": bool(measures.steps), "timeline": drawn is not None}
    return render_page(
        "watch.html",
        title=judgment.headline,
        brand="envkit watch report",
        sections={name: title for name, title in _SECTIONS.items() if shown.get(name, True)},
        document=without_identifiers({**record.to_json(), "judgment": judgment.to_json()}),
        verdict={Answer.FOUND: "warn", Answer.NOTHING: "pass", Answer.FAILED: "fail"}.get(
            judgment.answer, "inconclusive"
        ),
        headline=judgment.headline,
        command=" ".join(record.command),
        facts=_facts(record, judgment),
        tiles=_tiles(judgment),
        step=draw(_step(judgment)) if measures.steps else None,
        timeline=drawn,
        findings=[_finding(finding) for finding in judgment.findings],
    )


def _facts(record: Record, judgment: Judgment) -> list[str]:
    measures = judgment.measures
    facts = [f"{record.seconds:.1f} s", record.started]
    if measures.steps:
        facts.insert(0, f"{measures.steps} {measures.units} of {milliseconds(measures.step_s)}")
    if measures.ranks > 1:
        facts.append(f"{measures.ranks} ranks")
    if record.exit_code is not None:
        facts.append(f"exit code {record.exit_code}")
    facts.append(f"{record.machine.cpus:g} CPUs")
    return facts + ([str(card.get("name")) for card in record.machine.gpus] or ["no GPU"])


def _tiles(judgment: Judgment) -> list[Tile]:
    """Return the time of a step, what limits it, and the first advice."""
    measures = judgment.measures
    if not measures.steps:
        return []
    tiles = [Tile(f"Time of a {measures.unit}", milliseconds(measures.step_s), "mean after the warm-up", LOWER)]
    if judgment.findings:
        first = judgment.findings[0]
        tiles.append(Tile("Bottleneck", first.title, first.headline))
    elif measures.parts:
        name, share = max(measures.parts, key=lambda part: part[1])
        tiles.append(Tile("Largest part", f"{share:.0%}", name))
    advice = [change for finding in judgment.findings for change in finding.advice]
    if advice and gain(advice[0]):
        tiles.append(Tile("First change to try", gain(advice[0]), advice[0].text))
    return tiles


def _step(judgment: Judgment) -> Parts:
    measures = judgment.measures
    parts = [(name, share * measures.step_s * 1e3, _KINDS[name]) for name, share in measures.parts]
    summary = ", ".join(f"{name} {share:.0%}" for name, share in measures.parts)
    return Parts(
        "step-parts", f"One {measures.unit}", summary, [(f"{milliseconds(measures.step_s)}", parts)], "ms", LOWER
    )


def _finding(finding: Finding) -> Markup:
    changes = [el("li", el("span", change.text), *_gain_row(gain(change), change.reason)) for change in finding.advice]
    return el(
        "article",
        el("h3", f"{finding.title}: {finding.headline}"),
        el("p", finding.cause),
        el("ul", [el("li", text) for text in finding.evidence], class_="notes"),
        el("ul", changes, class_="advice"),
        class_="problem warn",
    )


def _gain_row(faster: str, reason: str) -> Sequence[Markup]:
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
