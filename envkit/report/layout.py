"""The report of one record as lines: the verdict first, then every check, then what was measured and what was not."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.checks.reading import Tree
from envkit.ground.text import cells, clean, fitted
from envkit.report.lines import Line, Span, table, wrapped
from envkit.report.measured import BUSY, sheets
from envkit.report.reading import (
    by_check,
    counted,
    neutral,
    not_checked,
    ran_by,
    surroundings,
    title_of,
    word,
    worst,
    wrong,
)

_MB = 1e6


def report_lines(record: Tree, *, width: int, place: str | None = None) -> list[Line]:
    """Lay a record (`envkit.verify/1`) out for `width` columns; `place` says where the record is kept."""
    checks: Sequence[Tree] = record["checks"]
    return [
        *_head(record, width),
        *_reasons(record["summary"], width),
        *_checks(checks, width),
        *_measured(checks, width),
        *_not_checked(checks, width),
        *_stderr(record["run"], width),
        (),
        *_foot(record, place, width),
    ]


def _head(record: Tree, width: int) -> list[Line]:
    verdict = str(record["summary"]["verdict"])
    subject, run, env = record["subject"], record["run"], record["env"]
    name, image = title_of(record)
    title = f"{word(verdict)}  {name + '  ' if name else ''}"
    lines: list[Line] = [(Span(title.rstrip(), verdict), Span("  " + fitted(image, max(width - cells(title) - 2, 20))))]
    facts = [f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s"]
    if subject.get("size_bytes"):
        facts.append(f"{subject['size_bytes'] / _MB:.0f} MB")
    lines += wrapped(", ".join(clean(fact) for fact in facts), width, first="  ", style="dim")
    around = surroundings(env)
    if around:
        lines += wrapped(", ".join(around), width, first="  ", style="dim")
    return lines


def _reasons(summary: Tree, width: int) -> list[Line]:
    lines: list[Line] = []
    for reason in summary["reasons"]:
        lines += [(), *wrapped(reason["message"], width, first=f"{reason['code']}: ", rest="  ")]
        if reason.get("advice"):
            lines += wrapped(reason["advice"], width, first="  -> ")
    return lines


def _checks(checks: Sequence[Tree], width: int) -> list[Line]:
    """One line per check; findings of it that are not PASS follow in full, with their advice."""
    groups = by_check(check for check in checks if check["reason_code"] != "NOT_OBSERVED")
    word_width = max((cells(worst(group)) for group in groups.values()), default=4)
    lines: list[Line] = [(), (Span("Checks", "bold"),)]
    for check_id, group in groups.items():
        verdict = worst(group)
        if verdict == "SKIP":
            continue
        lines.append(_group_line(check_id, group, verdict, word_width, width))
        lines += _findings(group, verdict, " " * (word_width + 4), width)
    return lines


def _findings(group: Sequence[Tree], verdict: str, hang: str, width: int) -> list[Line]:
    """Return the findings of a check besides PASS in full, each advice once."""
    lines: list[Line] = []
    told = wrong(group)
    for index, item in enumerate(told):
        label = f"{hang}{item['id']} " if len(group) > 1 else hang
        note = "" if item["verdict"] == verdict else f"{item['verdict']} "
        text = f"{note}{item['reason_code']}: {item['message']}"
        lines += wrapped(text, width, first=label, rest=hang + "  ")
        later = {advice for other in told[index + 1 :] for advice in other["advice"]}
        for advice in item["advice"]:
            lines += [] if advice in later else wrapped(advice, width, first=f"{hang}-> ")
    noisy = [item["id"] for item in group if neutral(item)]
    if noisy:
        text = f"{len(noisy)} of {len(group)} findings are inconclusive and do not count: {', '.join(noisy)}"
        lines += wrapped(text, width, first=hang, rest=hang + "  ", style="dim")
    return lines


def _group_line(check_id: str, group: Sequence[Tree], verdict: str, word_width: int, width: int) -> Line:
    start = f"  {verdict}{' ' * (word_width - cells(verdict))}  "
    head = f"{check_id}  {clean(group[0]['title'])}"
    ran = [item for item in group if item["verdict"] != "SKIP" and not neutral(item)]
    tail = ""
    if verdict == "PASS":
        messages = [clean(item["message"]) for item in ran]
        tail = messages[0] if len(messages) == 1 else f"{len(messages)} findings: {'; '.join(messages)}"
    room = width - cells(start) - cells(head) - 2
    shown = fitted(tail, room) if tail and room >= 12 else ""  # noqa: PLR2004 - less says nothing
    return (Span(start[:2]), Span(start[2:], verdict), Span(head), Span("  " + shown if shown else "", "dim"))


def _measured(checks: Sequence[Tree], width: int) -> list[Line]:
    """Every sheet that has a row, each under its heading."""
    lines: list[Line] = []
    for sheet in sheets(checks):
        rows = [[clean(one) for one in row] for row in sheet.rows]
        lines += [(), (Span(sheet.title, "bold"),), *table(sheet.head, rows, indent="  ", left=sheet.left)]
        for note in sheet.notes:
            lines += wrapped(note, width, first="  ")
        for advice in sheet.advice:
            lines += wrapped(advice, width, first="  -> ")
        if sheet.noisy:
            lines += wrapped(BUSY, width, first="  ", style="dim")
    return lines


def _not_checked(checks: Sequence[Tree], width: int) -> list[Line]:
    by_reason = not_checked(checks)
    if not by_reason:
        return []
    lines: list[Line] = [(), (Span("Not checked", "bold"),)]
    for (code, message), ids in by_reason.items():
        shown = ", ".join(dict.fromkeys(ids))
        lines += wrapped(f"{shown}: {message} ({code})", width, first="  ", rest="    ")
    return lines


def _stderr(run: Tree, width: int) -> list[Line]:
    tail = run["payload"]["stderr_tail"]
    if not tail:
        return []
    code = run["payload"]["exit_code"]
    lines: list[Line] = [(), (Span(f"Last output of the payload (exit code {code})", "bold"),)]
    return lines + [(Span(f"  | {fitted(clean(line), width - 4)}"),) for line in tail[-10:]]


def _foot(record: Tree, place: str | None, width: int) -> list[Line]:
    summary = record["summary"]
    verdict = str(summary["verdict"])
    told = f"{counted(summary)}. Exit code {summary['exit_code']}."
    lines = wrapped(told, width, first=f"{word(verdict)}  ", rest="  ", first_style=verdict)
    if place:
        lines += wrapped(place, max(width, cells(place) + 8), first="record: ")
    return lines
