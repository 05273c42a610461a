"""The page: one file with its style and its few lines of script inside, allowed by their hashes and nothing else.

`page.html` lays it out. What it prints is escaped there, so no part of a record becomes markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

import jinja2

import envkit
from envkit.checks.reading import Tree, check_of, is_number, mapping, sequence
from envkit.checks.shown import Shown
from envkit.report.formats import readable_json
from envkit.report.html.assets import asset, policy
from envkit.report.html.charts import draw
from envkit.report.html.markup import Markup, breakable, escaped, prose
from envkit.report.measured import BUSY, measured
from envkit.report.reading import (
    VERDICTS,
    blames_machine,
    by_check,
    environment,
    headline,
    not_checked,
    ran_by,
    title_of,
    weight,
    word,
    worst,
    wrong,
)

SECTIONS = {
    "verdict": "Verdict",
    "problems": "Problems",
    "pictures": "Measured",
    "checks": "All checks",
    "environment": "Environment",
    "thresholds": "Thresholds",
    "record": "Record",
}
_ABOUT = "M4.4 9c1.2-2 2.4-2 3.6-1s2.4 1 3.6-1"  # a tilde; a question mark in a diamond is U+FFFD, a broken character
_HALF = "M8 1a7 7 0 100 14A7 7 0 008 1zM8 3a5 5 0 010 10z"  # a ring whose left half is full
# Each verdict has a shape of its own, drawn on 16 x 16; the word always stands beside it.
SHAPES = {
    "PASS": ("M8 1a7 7 0 100 14A7 7 0 008 1z", "M4.5 8.3l2.4 2.4 4.6-5"),
    "WARN": ("M8 1.2l7.2 13.3H.8z", "M8 6v4M8 11.6v1"),
    "FAIL": ("M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4"),
    "ERROR": ("M1 1h14v14H1z", "M8 4v5M8 10.8v1.2"),
    "INCONCLUSIVE": ("M8 .2L15.8 8 8 15.8.2 8z", _ABOUT),
    "SKIP": ("M8 1a7 7 0 100 14A7 7 0 008 1z", "M4.8 8h6.4"),
    "NOT_VERIFIED": (_HALF, ""),
}
_MEANINGS = {
    "PASS": "All required checks passed.",
    "WARN": "All required checks passed, with warnings.",
    "FAIL": "The image failed a required check.",
    "ERROR": "A check could not run, so the image is not verified.",
    "INCONCLUSIVE": "A required measurement is not reliable, so the image is not verified.",
    "NOT_VERIFIED": "No failures, but some required checks could not run.",
}
_MACHINE = "This machine or its driver is faulty; the image is not verified."
_RULE_WORDS = ("type", "unit", "gates", "source", "judgement")
_MB = 1e6
_NAMED = 3
_DEEPEST = 6
_WHOLE = 1e15  # from here on a float has no digits behind its point


def render_html(record: Tree) -> bytes:
    """Return a record (`envkit.verify/1`) as one self-contained page. The same record gives the same bytes."""
    text = _environment().get_template("page.html").render(_view(record))
    return f"{text.strip()}\n".encode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        finalize=_printed,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "prose": prose, "scalar": _scalar}
    environment.tests |= {"said": _said, "nested": _nested}
    environment.globals |= {
        "DEEPEST": _DEEPEST,
        "evidence": _evidence,
        "blames_machine": blames_machine,
        "gate": _gate,
        "known": lambda verdict: verdict if verdict in SHAPES else "ERROR",
        "weight": weight,
        "word": word,
    }
    return environment


def _printed(value: Any) -> Any:
    """Return what stands in the page for a value of the template: markup as it is, anything else escaped."""
    return value if hasattr(value, "__html__") else escaped(value)


def _view(record: Tree) -> dict[str, Any]:
    style, script = asset("report.css"), asset("report.js")
    name, image = title_of(record)
    summary, run = record["summary"], record["run"]
    verdict = str(summary["verdict"])
    return {
        "checks": [_group(check, items, items) for check, items in by_check(record["checks"]).items()],
        "counts": [(kind, summary["counts"][kind]) for kind in VERDICTS if summary["counts"].get(kind)],
        "environment": _parts(record),
        "facts": _facts(record),
        "image": image,
        "left_out": [
            (reason, message, ", ".join(dict.fromkeys(ids)))
            for (reason, message), ids in not_checked(record["checks"]).items()
        ],
        "headline": headline(summary),
        "meaning": _MACHINE if blames_machine(summary) else _MEANINGS.get(verdict, ""),
        "name": name or image,
        "newline": Markup("\n"),
        "payload_exit_code": run["payload"]["exit_code"],
        "policy": policy(style, script),
        "problems": _problems(record),
        "raw": Markup(readable_json(record)),
        "rules": _rules(record),
        "run_id": run["id"],
        "schema": record["schema"],
        "script": Markup(script),
        "sections": SECTIONS,
        "shapes": SHAPES,
        "stderr_tail": run["payload"]["stderr_tail"],
        "style": Markup(style),
        "summary": summary,
        "topics": [_topic(shown, absent) for shown, absent in measured(record["checks"])],
        "verdict": verdict,
        "version": envkit.__version__,
    }


def _facts(record: Tree) -> list[str]:
    run, size = record["run"], record["subject"].get("size_bytes")
    facts = [f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s", str(run["started"])]
    return [*environment(record["env"]), *facts, *([f"{size / _MB:.0f} MB"] if is_number(size) else [])]


def _group(check: str, items: Sequence[Tree], shown: Sequence[Tree]) -> tuple[str, str, str, Sequence[Tree]]:
    return worst(items), check, items[0]["title"], shown


def _problems(record: Tree) -> list[tuple[str, str, str, Sequence[Tree]]]:
    """Return what failed, the worst first."""
    groups = [(check, items) for check, items in by_check(record["checks"]).items() if wrong(items)]
    groups.sort(key=lambda group: VERDICTS.index(worst(group[1])))
    return [_group(check, items, wrong(items)) for check, items in groups]


def _topic(shown: Shown, absent: str) -> dict[str, Any]:
    noisy = any(sheet.noisy for sheet in (*shown.sheets, *shown.details))
    return {
        "ident": shown.ident,
        "title": shown.title,
        "absent": absent,
        "remark": " ".join(filter(None, (shown.remark, BUSY if noisy else ""))),
        "notes": [line for sheet in shown.sheets for line in sheet.notes],
        "advice": [line for sheet in shown.sheets for line in sheet.advice],
        "figures": [draw(figure) for figure in shown.figures],
        "numbers": shown.details or shown.sheets,
    }


def _evidence(item: Tree) -> dict[str, Any]:
    """Return how a finding was judged, by name."""
    controls = {
        control.get("name", "control"): f"{'held' if control.get('held') is True else 'did not hold'}"
        f"{': ' + str(control['detail']) if control.get('detail') else ''}"
        for control in map(mapping, sequence(item["controls"]))
    }
    return {
        "measured on": item["subject"],
        "counts": item["gates"],
        "at fault": item.get("blames"),
        "metric": item["metric"],
        "derived": item["derived"],
        "rule": item["rule"],
        "controls": controls,
        "samples": {key: value for key, value in mapping(item["samples"]).items() if key != "values"},
        "statistics": item["stats"],
        "noise": item["noise"],
        "observed": item["observed"],
        "took, s": item["duration_s"],
    }


def _gate(item: Tree) -> Any:
    return mapping(item["noise"]).get("gate", "clean")


def _parts(record: Tree) -> list[tuple[str, Tree, bool]]:
    """Return where the image ran and what was found there: a title, names and values, whether it is open."""
    env, run = record["env"], record["run"]
    parts = {
        "Image": record["subject"],
        "Run": {key: value for key, value in run.items() if key != "payload"},
        "Host": env["host"],
        "GPUs": {str(index): card for index, card in enumerate(env["gpu"])},
        "Software": env["sw"],
        "Settings": env["flags"],
        "Fingerprints": env["fingerprint"],
    }
    return [(name, mapping(part), name in ("Host", "GPUs")) for name, part in parts.items() if part]


def _rules(record: Tree) -> list[dict[str, Any]]:
    """Return each rule that was applied, once, with its findings and where its numbers come from."""
    by_rule: dict[str, list[Tree]] = {}
    for item in record["checks"]:
        if item["rule"]:
            by_rule.setdefault(json.dumps(item["rule"], sort_keys=True), []).append(item)
    # Older records lack the table; their rules still name its rows.
    rows = mapping(mapping(mapping(record.get("judge")).get("thresholds")).get("rules"))
    return [_rule(items, rows) for items in by_rule.values()]


def _rule(items: Sequence[Tree], rows: Tree) -> dict[str, Any]:
    rule = items[0]["rule"]
    row = str(rule.get("source") or "").rpartition(": ")[2]
    unit = f" ({rule['unit']})" if rule.get("unit") not in (None, "", "1") else ""
    none = "no threshold" if rule.get("type") == "informs" else "exact comparison, no threshold"
    return {
        "findings": _named([str(item["id"]) for item in items]),
        "type": f"{rule.get('type', 'none')}{unit}",
        "numbers": {key: value for key, value in rule.items() if key not in _RULE_WORDS},
        "weight": "informs" if rule.get("gates") is False else "counts",
        "sources": [rule.get("source") or none, *sequence(mapping(rows.get(row)).get("source"))],
        "judgement": rule.get("judgement") is True,
    }


def _named(ids: Sequence[str]) -> str:
    """Return the findings, or what they have in common where they are many."""
    if len(ids) <= _NAMED:
        return ", ".join(ids)
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*(one.split(".") for one in ids), strict=False))
    common = ".".join(words[0] for words in shared)
    return f"{len(ids)} findings of {common or ', '.join(dict.fromkeys(check_of(one) for one in ids))}"


def _said(value: Any) -> bool:
    """Whether there is something to show."""
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
