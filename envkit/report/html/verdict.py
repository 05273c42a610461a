"""The top of the report: the verdict, what it rests on, and what to do about everything that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.reading import Tree, is_number, mapping
from envkit.report.html.tables import breakable, prose
from envkit.report.markup import Markup, el, join
from envkit.report.reading import VERDICTS, by_check, ran_by, surroundings, title_of, weight, word, worst, wrong

_ABOUT = "M4.4 9c1.2-2 2.4-2 3.6-1s2.4 1 3.6-1"  # a tilde; a question mark in a diamond is U+FFFD, a broken character
_HALF = "M8 1a7 7 0 100 14A7 7 0 008 1zM8 3a5 5 0 010 10z"  # a ring whose left half is full
# Each verdict has a shape of its own, drawn on 16 x 16; the word always stands beside it.
_SHAPES = {
    "PASS": ("M8 1a7 7 0 100 14A7 7 0 008 1z", "M4.5 8.3l2.4 2.4 4.6-5"),
    "WARN": ("M8 1.2l7.2 13.3H.8z", "M8 6v4M8 11.6v1"),
    "FAIL": ("M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4"),
    "ERROR": ("M1 1h14v14H1z", "M8 4v5M8 10.8v1.2"),
    "INCONCLUSIVE": ("M8 .2L15.8 8 8 15.8.2 8z", _ABOUT),
    "SKIP": ("M8 1a7 7 0 100 14A7 7 0 008 1z", "M4.8 8h6.4"),
    "NOT_VERIFIED": (_HALF, ""),
}
_SAID = {
    "PASS": "Every check that counts held.",
    "WARN": "Every check that counts held; something below is worth a look.",
    "FAIL": "The image, or the machine it ran on, does not do what it has to.",
    "ERROR": "A check could not run, so the image is not proved.",
    "INCONCLUSIVE": "A number that counts cannot be trusted, so the image is not proved.",
    "NOT_VERIFIED": "Nothing speaks against the image, and something that would prove it was missing.",
}
_MB = 1e6


def shapes() -> Markup:
    """The shapes of all verdicts, to be used by name."""
    drawn = [
        el(
            "symbol",
            el("path", d=body, class_="body"),
            el("path", d=sign, class_="sign"),
            id=f"v-{name}",
            viewBox="0 0 16 16",
        )
        for name, (body, sign) in _SHAPES.items()
    ]
    return el("svg", *drawn, class_="shapes", width="0", height="0", aria_hidden="true")


def badge(verdict: str) -> Markup:
    """A verdict: its shape and its word."""
    known = verdict if verdict in _SHAPES else "ERROR"
    shape = el("svg", el("use", href=f"#v-{known}"), aria_hidden="true", focusable="false")
    return el("span", shape, word(verdict), class_=f"badge {known.lower()}")


def verdict_section(record: Tree) -> Markup:
    """The verdict on the image in one line, its reasons and the facts of the run."""
    summary, run, subject = record["summary"], record["run"], record["subject"]
    name, image = title_of(record)
    verdict = str(summary["verdict"])
    facts = [f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s", str(run["started"])]
    size = subject.get("size_bytes")
    if is_number(size):
        facts.append(f"{size / _MB:.0f} MB")
    counts = [el("li", badge(kind), f" {summary['counts'][kind]}") for kind in VERDICTS if summary["counts"].get(kind)]
    return el(
        "section",
        el("h1", badge(verdict), " ", el("span", breakable(name or image), class_="name")),
        el("p", breakable(image), class_="image") if name else None,
        el("p", _SAID.get(verdict, ""), f" Exit code {summary['exit_code']}.", class_="said"),
        [_reason(reason) for reason in summary["reasons"]],
        el("ul", counts, class_="counts", aria_label="Findings by verdict"),
        el("p", " · ".join([*surroundings(record["env"]), *facts]), class_="facts"),
        id="verdict",
        aria_label="Verdict",
        class_=f"verdict {verdict.lower()}",
    )


def _reason(reason: Tree) -> Markup:
    advice = el("p", prose(reason["advice"]), class_="advice") if reason.get("advice") else None
    return el("div", el("p", code(reason["code"]), " ", reason["message"]), advice, class_="reason")


def problems_section(record: Tree) -> Markup:
    """What failed, the worst first, each with its advice; one line where nothing did."""
    groups = [(check, group) for check, group in by_check(record["checks"]).items() if wrong(group)]
    groups.sort(key=lambda item: VERDICTS.index(worst(item[1])))
    articles = [_problem(check, group) for check, group in groups]
    nothing = el("p", "Nothing failed, and nothing is worth a warning.", class_="absent")
    return el(
        "section",
        el("h2", "What is wrong and what to do", id="problems-h"),
        articles or nothing,
        _last_words(record["run"]),
        id="problems",
        aria_labelledby="problems-h",
    )


def _problem(check: str, group: Sequence[Tree]) -> Markup:
    heading = el("h3", badge(worst(group)), f" {check} {group[0]['title']}")
    return el("article", heading, [finding(item) for item in wrong(group)], class_=f"problem {worst(group).lower()}")


def finding(item: Tree) -> Markup:
    """One finding that is not PASS: which, why, and what to do."""
    advice = el("ul", [el("li", prose(line)) for line in item["advice"]], class_="advice") if item["advice"] else None
    informs = el("span", " informs", class_="quiet") if weight(item) != item["verdict"] else None
    where = el("strong", breakable(item["id"]))
    about = el("span", " on ", item["subject"], class_="quiet")
    said = el("p", where, about, informs, " ", code(item["reason_code"]), el("br"), prose(item["message"]))
    return el("div", said, _noise(item), advice, class_="finding")


def _noise(item: Tree) -> Markup | None:
    gate = mapping(item["noise"]).get("gate", "clean")
    return None if gate == "clean" else el("p", f"While it was timed: {gate}.", class_="quiet")


def _last_words(run: Tree) -> Markup | None:
    payload = run["payload"]
    if not payload["stderr_tail"]:
        return None
    lines = join([join([line, Markup("\n")]) for line in payload["stderr_tail"]])
    name = f"The payload's last words (exit code {payload['exit_code']})"
    return el("details", el("summary", name), el("pre", lines, tabindex="0", aria_label=name))


def code(text: object) -> Markup | None:
    """A reason code."""
    return None if text is None else el("code", breakable(text))
