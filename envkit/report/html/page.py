"""The page of one verification: the values for `page.html`, which lays them out and escapes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from envkit.checks.catalog import TIERS, CheckEntry, catalog
from envkit.checks.reading import Tree, check_of, is_number, mapping, sequence
from envkit.checks.sheet import Shown
from envkit.ground.sizes import shown_size
from envkit.report.environment import parts, without_identifiers
from envkit.report.html.charts import draw
from envkit.report.html.frame import render_page
from envkit.report.html.markup import Markup
from envkit.report.measured import BUSY, measured, samples
from envkit.report.reading import (
    VERDICTS,
    blames_machine,
    by_check,
    environment,
    headline,
    not_checked,
    ran_by,
    title_of,
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
    "samples": "Samples",
    "record": "Record",
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
_OTHER = "Other checks"
_MB = 1e6
_NAMED = 3  # IDs listed in a row; more are counted


def render_html(record: Tree) -> bytes:
    """Return a record (`envkit.verify/1`) as one self-contained page, without the UUIDs of GPUs.

    The same record gives the same bytes.
    """
    return render_html_full(without_identifiers(record))


def render_html_full(record: Tree) -> bytes:
    """Return the same page with the UUIDs of GPUs."""
    name, image = title_of(record)
    return render_page(
        "page.html",
        title=f"{word(record['summary']['verdict'])}: {name or image}",
        brand="envkit verification report",
        sections=SECTIONS,
        document=record,
        **_view(record),
    )


def _view(record: Tree) -> dict[str, Any]:
    name, image = title_of(record)
    summary, run = record["summary"], record["run"]
    verdict = str(summary["verdict"])
    measurements = measured(record["checks"])
    return {
        "blames_machine": blames_machine,
        "by_topic": _by_topic(record),
        "counts": [(kind, summary["counts"][kind]) for kind in VERDICTS if summary["counts"].get(kind)],
        "environment": parts(record),
        "evidence": _evidence,
        "facts": _facts(record),
        "gate": _gate,
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
        "no_problems": _no_problems(record),
        "problems": _problems(record),
        "rules": _rules(record),
        "run_id": run["id"],
        "stderr_tail": run["payload"]["stderr_tail"],
        "summary": summary,
        "absent": _absent(record, measurements),
        "samples": _topic(samples(record["checks"])),
        "tiles": [tile for _, shown in measurements for tile in shown.tiles],
        "topics": [_topic(shown) for _, shown in measurements if _measured(shown)],
        "verdict": verdict,
    }


def _facts(record: Tree) -> list[str]:
    run, size = record["run"], record["subject"].get("size_bytes")
    facts = [f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s", str(run["started"])]
    return [*environment(record["env"]), *facts, *([f"image of {shown_size(size)}"] if is_number(size) else [])]


def _group(check: str, items: Sequence[Tree], shown: Sequence[Tree]) -> tuple[str, str, str, Sequence[Tree]]:
    return worst(items), check, items[0]["title"], shown


def _problems(record: Tree) -> list[tuple[str, str, str, Sequence[Tree]]]:
    """Return the checks with problems, most severe first."""
    groups = [(check, items) for check, items in by_check(record["checks"]).items() if wrong(items)]
    groups.sort(key=lambda group: VERDICTS.index(worst(group[1])))
    return [_group(check, items, wrong(items)) for check, items in groups]


def _no_problems(record: Tree) -> str:
    """Return what to do where nothing failed."""
    if not any(reason["code"] == "NO_GPU" for reason in record["summary"]["reasons"]):
        return "No failures and no warnings."
    least = mapping(mapping(record["subject"].get("spec")).get("driver")).get("minimum")
    driver = f" (driver {least} or newer)" if least else ""
    return f"Nothing failed. To verify the image, run envkit verify on a machine with an NVIDIA GPU{driver}."


def _measured(shown: Shown) -> bool:
    return bool(shown.figures or shown.details or shown.sheets)


def _absent(record: Tree, measurements: Sequence[tuple[CheckEntry, Shown]]) -> dict[str, list[str]]:
    """Return the titles of the checks that measured nothing, by what they need."""
    by_need: dict[str, list[str]] = {}
    for entry, shown in measurements:
        if not _measured(shown):
            by_need.setdefault(_need(record, entry), []).append(shown.title)
    return by_need


def _need(record: Tree, entry: CheckEntry) -> str:
    if entry.needs == "cuda" and not record["env"]["gpu"]:
        return "Needs a GPU"
    tier = str(record["run"]["tier"])
    deeper = tier not in TIERS or TIERS.index(entry.tier) > TIERS.index(tier)
    return f"Needs the tier {entry.tier}" if deeper else "Did not run, or measured nothing"


def _by_topic(record: Tree) -> list[tuple[str, list[tuple[str, str, str, Sequence[Tree]]]]]:
    """Return the checks by topic; topics, and the checks of each, are sorted by severity."""
    topics = {entry.id: entry.topic for entry in catalog()}
    groups: dict[str, list[tuple[str, str, str, Sequence[Tree]]]] = {}
    for check, items in by_check(record["checks"]).items():
        groups.setdefault(topics.get(check) or _OTHER, []).append(_group(check, items, items))

    def severity(group: tuple[str, str, str, Sequence[Tree]]) -> int:
        return VERDICTS.index(group[0])

    ordered = [
        (topic, sorted(members, key=lambda group: (severity(group), group[1]))) for topic, members in groups.items()
    ]
    return sorted(ordered, key=lambda section: severity(section[1][0]))


def _topic(shown: Shown) -> dict[str, Any]:
    noisy = any(sheet.noisy for sheet in (*shown.sheets, *shown.details))
    return {
        "ident": shown.ident,
        "title": shown.title,
        "remark": " ".join(filter(None, (shown.remark, BUSY if noisy else ""))),
        "notes": [line for sheet in shown.sheets for line in sheet.notes],
        "advice": [line for sheet in shown.sheets for line in sheet.advice],
        "figures": [draw(figure) for figure in shown.figures],
        "numbers": shown.details or shown.sheets,
    }


def _evidence(item: Tree) -> dict[str, Any]:
    """Return the values from which a finding was judged, by name."""
    controls = {
        control.get("name", "control"): f"{'fault noticed' if control.get('held') is True else 'fault not noticed'}"
        f"{': ' + str(control['detail']) if control.get('detail') else ''}"
        for control in map(mapping, sequence(item["controls"]))
    }
    return {
        "measured on": item["subject"],
        "counts": item["gates"],
        "caused by": item.get("blames"),
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


def _rules(record: Tree) -> list[dict[str, Any]]:
    """Return each applied rule once, with its findings and the sources of its numbers."""
    by_rule: dict[str, list[Tree]] = {}
    for item in record["checks"]:
        if item["rule"]:
            by_rule.setdefault(json.dumps(item["rule"], sort_keys=True), []).append(item)
    # Older records have no table of thresholds, but their rules name its rows.
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
    """Return the finding IDs; if there are many, their number and common prefix."""
    if len(ids) <= _NAMED:
        return ", ".join(ids)
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*(ident.split(".") for ident in ids), strict=False))
    common = ".".join(words[0] for words in shared)
    return f"{len(ids)} findings of {common or ', '.join(dict.fromkeys(check_of(ident) for ident in ids))}"
