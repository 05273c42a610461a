"""The rest of the report: every check, the environment, the thresholds with their sources, the raw record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile

from envkit.checks.reading import Tree, check_of, mapping, sequence
from envkit.report.html.tables import breakable, prose, stacked, terms
from envkit.report.html.verdict import badge, code
from envkit.report.markup import Markup, el
from envkit.report.plain_json import readable_json
from envkit.report.reading import by_check, not_checked, worst

_RULE_WORDS = ("type", "unit", "gates", "source", "judgement")
_NAMED = 3


def checks_section(record: Tree) -> Markup:
    """Every check, opened by itself where something is wrong."""
    groups = by_check(record["checks"])
    return _section(
        "checks", "All checks", [_check(check, group) for check, group in groups.items()], _left_out(record)
    )


def _check(check: str, group: Sequence[Tree]) -> Markup:
    verdict = worst(group)
    many = el("span", f" {len(group)} findings", class_="quiet") if len(group) > 1 else None
    summary = el("summary", badge(verdict), el("span", f" {check} {group[0]['title']}", class_="name"), many)
    return el("details", summary, [_finding(item) for item in group], class_="check")


def _finding(item: Tree) -> Markup:
    return el(
        "div",
        el("p", badge(item["verdict"]), " ", el("strong", breakable(item["id"])), " ", code(item["reason_code"])),
        el("p", prose(item["message"])),
        el("ul", [el("li", prose(line)) for line in item["advice"]], class_="advice") if item["advice"] else None,
        el("details", el("summary", f"How {item['id']} was judged"), _evidence(item)),
        class_="finding",
    )


def _evidence(item: Tree) -> Markup:
    samples = mapping(item["samples"])
    shown = {key: value for key, value in samples.items() if key != "values"}
    controls = {
        control.get("name", "control"): f"{'held' if control.get('held') is True else 'did not hold'}"
        f"{': ' + str(control['detail']) if control.get('detail') else ''}"
        for control in map(mapping, sequence(item["controls"]))
    }
    pairs = {
        "measured on": item["subject"],
        "counts for the image": item["gates"],
        "metric": item["metric"],
        "derived": item["derived"],
        "rule": item["rule"],
        "controls": controls,
        "samples": shown,
        "statistics": item["stats"],
        "noise": item["noise"],
        "observed": item["observed"],
        "took, s": item["duration_s"],
    }
    return terms(pairs)


def _left_out(record: Tree) -> Markup | None:
    rows = [
        [code(reason), message, breakable(", ".join(dict.fromkeys(ids)))]
        for (reason, message), ids in not_checked(record["checks"]).items()
    ]
    return stacked("What was not checked, and why", ["Reason", "Meaning", "Checks"], rows) if rows else None


def environment_section(record: Tree) -> Markup:
    """Where it ran and what was found there."""
    env, subject, run = record["env"], record["subject"], record["run"]
    parts = {
        "Image": subject,
        "Run": {key: value for key, value in run.items() if key != "payload"},
        "Host": env["host"],
        "GPUs": {str(index): card for index, card in enumerate(env["gpu"])},
        "Software": env["sw"],
        "Settings": env["flags"],
        "Fingerprints": env["fingerprint"],
    }
    shown = [
        el("details", el("summary", name), terms(mapping(part)), open=name in ("Host", "GPUs"))
        for name, part in parts.items()
        if part
    ]
    return _section("environment", "Environment", shown)


def thresholds_section(record: Tree) -> Markup:
    """Each rule that was applied, once, with the findings it was applied to and where its numbers come from."""
    by_rule: dict[str, list[Tree]] = {}
    for item in record["checks"]:
        if item["rule"]:
            by_rule.setdefault(json.dumps(item["rule"], sort_keys=True), []).append(item)
    # Older records lack the table; their rules still name its rows.
    table_rows = mapping(mapping(mapping(record.get("judge")).get("thresholds")).get("rules"))
    rows = [_rule(items, table_rows) for items in by_rule.values()]
    if not rows:
        return _section("thresholds", "Thresholds and their sources", el("p", "No rule was applied.", class_="absent"))
    head = ["Findings", "Rule", "Numbers", "For the verdict", "Source"]
    remark = el(
        "p", "A number marked as a judgement has not been confirmed by a measurement on a GPU.", class_="remark"
    )
    rules = stacked("Rules and their numbers", head, rows)
    folded = el("details", el("summary", f"The {len(rows)} rules of this run"), rules)
    return _section("thresholds", "Thresholds and their sources", remark, folded)


def _rule(items: Sequence[Tree], table_rows: Tree) -> list[object]:
    rule = items[0]["rule"]
    row = str(rule.get("source") or "").rpartition(": ")[2]
    numbers = {key: value for key, value in rule.items() if key not in _RULE_WORDS}
    unit = f" ({rule['unit']})" if rule.get("unit") not in (None, "", "1") else ""
    none = "held to no number" if rule.get("type") == "informs" else "exact: no number was chosen"
    sources = [
        rule.get("source") or none,
        *sequence(mapping(table_rows.get(row)).get("source")),
    ]
    judged = el("p", "a judgement", class_="quiet") if rule.get("judgement") is True else None
    return [
        breakable(_named([str(item["id"]) for item in items])),
        breakable(f"{rule.get('type', 'none')}{unit}"),
        terms(numbers),
        "informs" if rule.get("gates") is False else "counts",
        el("div", [el("p", source) for source in sources], judged),
    ]


def _named(ids: Sequence[str]) -> str:
    """The findings, or what they have in common where they are many."""
    if len(ids) <= _NAMED:
        return ", ".join(ids)
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*(one.split(".") for one in ids), strict=False))
    common = ".".join(words[0] for words in shared)
    return f"{len(ids)} findings of {common or ', '.join(dict.fromkeys(check_of(one) for one in ids))}"


def record_section(record: Tree) -> Markup:
    """The record itself, to read and to save."""
    save = el("button", "Save the record", type="button", id="save", hidden=True)
    raw = el("pre", Markup(readable_json(record)), id="raw", tabindex="0", aria_label="The record as JSON")
    schema = el("p", "Schema ", el("code", record["schema"]), ". Every verdict can be recomputed from it.")
    return _section("record", "The record", schema, save, el("details", el("summary", "Show the record"), raw))


def _section(ident: str, title: str, *parts: object) -> Markup:
    return el("section", el("h2", title, id=f"{ident}-h"), *parts, id=ident, aria_labelledby=f"{ident}-h")
