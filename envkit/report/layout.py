"""The report of one record as lines: the verdict first, then every check, then what was measured and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envkit.report.lines import Line, Span, cells, clean, fitted, wrapped
from envkit.report.tables import benchmark_tables

Tree = Mapping[str, Any]
# Worst first; the order also sorts the findings within one check.
VERDICTS = ("FAIL", "ERROR", "INCONCLUSIVE", "WARN", "PASS", "SKIP")
WORDS = {"NOT_VERIFIED": "NOT VERIFIED"}
_MB = 1e6
_NOT_PROMISED = "not promised, so there is nothing to hold it to; what was found is in the record"


def report_lines(record: Tree, *, width: int, place: str | None = None) -> list[Line]:
    """Lay a record (`envkit.verify/1`) out for `width` columns; `place` says where the record is kept."""
    checks: Sequence[Tree] = record["checks"]
    return [
        *_head(record, width),
        *_reasons(record["summary"], width),
        *_checks(checks, width),
        *benchmark_tables(checks),
        *_not_checked(checks, width),
        *_stderr(record["run"], width),
        (),
        *_foot(record, place, width),
    ]


def _head(record: Tree, width: int) -> list[Line]:
    verdict = str(record["summary"]["verdict"])
    subject, run, env = record["subject"], record["run"], record["env"]
    name = clean(subject.get("name") or "")
    by_id = str(subject["image"]).startswith("sha256:")
    image = clean(subject["tags"][0] if by_id and subject["tags"] else subject["image"])
    title = f"{WORDS.get(verdict, verdict)}  {name + '  ' if name and name != image else ''}"
    lines: list[Line] = [(Span(title.rstrip(), verdict), Span("  " + fitted(image, max(width - cells(title) - 2, 20))))]
    facts = [f"tier {run['tier']}", f"runner {run['runner']}", f"{run['duration_s']:.1f} s"]
    if subject.get("size_bytes"):
        facts.append(f"{subject['size_bytes'] / _MB:.0f} MB")
    lines += wrapped(", ".join(clean(fact) for fact in facts), width, first="  ", style="dim")
    surroundings = _surroundings(env)
    if surroundings:
        lines += wrapped(surroundings, width, first="  ", style="dim")
    return lines


def _surroundings(env: Tree) -> str:
    software, host = env.get("sw") or {}, env.get("host") or {}
    facts = []
    if software.get("torch"):
        facts.append(f"torch {software['torch']}")
        facts.append(f"CUDA {software['torch_cuda']}" if software.get("torch_cuda") else "no CUDA")
    if software.get("python"):
        facts.append(f"Python {software['python']}")
    cards = [str(card.get("name")) for card in env.get("gpu") or [] if isinstance(card, dict)]
    counted = [f"{cards.count(card)} x {card}" if cards.count(card) > 1 else card for card in dict.fromkeys(cards)]
    facts += counted or (["no GPU"] if host else [])
    if host.get("cpu_model"):
        effective = host.get("effective")
        cpus = f" ({effective:g} CPUs)" if isinstance(effective, int | float) else ""
        facts.append(f"{host['cpu_model']}{cpus}")
    return ", ".join(clean(fact) for fact in facts)


def _reasons(summary: Tree, width: int) -> list[Line]:
    lines: list[Line] = []
    for reason in summary["reasons"]:
        lines += [(), *wrapped(reason["message"], width, first=f"{reason['code']}: ", rest="  ")]
        if reason.get("advice"):
            lines += wrapped(reason["advice"], width, first="  -> ")
    return lines


def _checks(checks: Sequence[Tree], width: int) -> list[Line]:
    """One line per check; findings of it that are not PASS follow in full, with their advice."""
    groups: dict[str, list[Tree]] = {}
    for check in checks:
        if check["reason_code"] != "NOT_OBSERVED":
            groups.setdefault(str(check["id"]).partition(".")[0], []).append(check)
    word_width = max((cells(_worst(group)) for group in groups.values()), default=4)
    lines: list[Line] = [(), (Span("Checks", "bold"),)]
    for check_id, group in groups.items():
        worst = _worst(group)
        if worst == "SKIP":
            continue
        lines.append(_group_line(check_id, group, worst, word_width, width))
        lines += _findings(group, worst, " " * (word_width + 4), width)
    return lines


def _findings(group: Sequence[Tree], worst: str, hang: str, width: int) -> list[Line]:
    """What a check has to say besides PASS: each finding in full, each advice once."""
    lines: list[Line] = []
    told = sorted(
        (item for item in group if item["verdict"] not in ("PASS", "SKIP") and not _neutral(item)),
        key=lambda item: VERDICTS.index(item["verdict"]),
    )
    for index, item in enumerate(told):
        label = f"{hang}{item['id']} " if len(group) > 1 else hang
        note = "" if item["verdict"] == worst else f"{item['verdict']} "
        text = f"{note}{item['reason_code']}: {item['message']}"
        lines += wrapped(text, width, first=label, rest=hang + "  ")
        later = {advice for other in told[index + 1 :] for advice in other["advice"]}
        for advice in item["advice"]:
            lines += [] if advice in later else wrapped(advice, width, first=f"{hang}-> ")
    noisy = [item["id"] for item in group if _neutral(item)]
    if noisy:
        text = f"{len(noisy)} of {len(group)} findings are inconclusive and do not count: {', '.join(noisy)}"
        lines += wrapped(text, width, first=hang, rest=hang + "  ", style="dim")
    return lines


def _neutral(item: Tree) -> bool:
    """A number that nothing depends on and that cannot be trusted."""
    return item["verdict"] == "INCONCLUSIVE" and not item["gates"]


def _group_line(check_id: str, group: Sequence[Tree], worst: str, word_width: int, width: int) -> Line:
    start = f"  {worst}{' ' * (word_width - cells(worst))}  "
    head = f"{check_id}  {clean(group[0]['title'])}"
    ran = [item for item in group if item["verdict"] != "SKIP" and not _neutral(item)]
    tail = ""
    if worst == "PASS":
        messages = [clean(item["message"]) for item in ran]
        tail = messages[0] if len(messages) == 1 else f"{len(messages)} findings: {'; '.join(messages)}"
    room = width - cells(start) - cells(head) - 2
    shown = fitted(tail, room) if tail and room >= 12 else ""  # noqa: PLR2004 - less says nothing
    return (Span(start[:2]), Span(start[2:], worst), Span(head), Span("  " + shown if shown else "", "dim"))


def _worst(group: Sequence[Tree]) -> str:
    """What a check's line says: a finding that only informs does not make its check fail."""
    verdicts = {
        "WARN" if item["verdict"] == "FAIL" and not item["gates"] else str(item["verdict"])
        for item in group
        if not _neutral(item)
    } or {"INCONCLUSIVE"}
    return next(verdict for verdict in VERDICTS if verdict in verdicts)


def _not_checked(checks: Sequence[Tree], width: int) -> list[Line]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        if check["verdict"] == "SKIP" or check["reason_code"] == "NOT_OBSERVED":
            code = str(check["reason_code"])
            message = _NOT_PROMISED if code == "NOT_PROMISED" else str(check["message"])
            by_reason.setdefault((code, message), []).append(str(check["id"]))
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
    lines: list[Line] = [(), (Span(f"The payload's last words (exit code {code})", "bold"),)]
    return lines + [(Span(f"  | {fitted(clean(line), width - 4)}"),) for line in tail[-10:]]


def _foot(record: Tree, place: str | None, width: int) -> list[Line]:
    summary = record["summary"]
    counts = summary["counts"]
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts.get(verdict))
    verdict = str(summary["verdict"])
    told = f"exit code {summary['exit_code']}; {told}"
    lines = wrapped(told, width, first=f"{WORDS.get(verdict, verdict)}  ", rest="  ", first_style=verdict)
    if place:
        lines += wrapped(place, max(width, cells(place) + 8), first="record: ")
    return lines
