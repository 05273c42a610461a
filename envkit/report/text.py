"""The report as text, with color for a terminal.

The verdict comes first, then every check, then what was measured and what was not. Widths are in terminal cells.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.checks.reading import Tree
from envkit.ground.sizes import shown_size
from envkit.ground.text import aligned, cells, clean, fitted
from envkit.report.measured import BUSY, measured, sheets
from envkit.report.reading import (
    NOT_PROMISED,
    by_check,
    code_of,
    counted,
    environment,
    headline,
    neutral,
    not_checked,
    ran_by,
    title_of,
    unseen,
    worst,
    wrong,
)

STYLES = {
    "PASS": "bold green",
    "WARN": "bold yellow",
    "FAIL": "bold red",
    "ERROR": "bold magenta",
    "INCONCLUSIVE": "yellow",
    "NOT_VERIFIED": "bold yellow",
    "bold": "bold",
    "dim": "dim",
}
MIN_WIDTH = 40  # columns; lines stay that long on a narrower terminal
_LOADER = "C12"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text and the name of its style. Styles carry no information of their own."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def render_text(
    record: Mapping[str, Any],
    *,
    width: int = 80,
    color: bool = False,
    path: str | None = None,
    brief: bool = False,
    rows: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a record (`envkit.verify/1`) as text of at most `width` columns, with a final newline.

    Args:
        record: the record.
        width: in columns.
        color: use colors of a terminal.
        path: of the record, for the last line.
        brief: findings other than PASS in full, and about ten lines on the rest; else everything.
        rows: further labels and texts at the end of the brief form.
    """
    lines = brief_lines(record, rows, width=width, path=path) if brief else report_lines(record, width=width, path=path)
    if not color:
        return "\n".join(plain(line) for line in lines) + "\n"
    return _colored(lines)


def _colored(lines: list[Line]) -> str:
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415

    buffer = io.StringIO()
    # The lines are laid out already, so rich must not wrap them: any width that is larger than theirs.
    console = Console(
        file=buffer, force_terminal=True, color_system="standard", width=10_000, highlight=False, legacy_windows=False
    )
    for line in lines:
        text = Text()
        for span in line:
            text.append(span.text, STYLES.get(span.style))
        text.rstrip()
        console.print(text, soft_wrap=True)
    return buffer.getvalue()


def report_lines(record: Tree, *, width: int, path: str | None = None) -> list[Line]:
    """Lay out a record (`envkit.verify/1`) for `width` columns; `path` is the path of the record."""
    checks: Sequence[Tree] = record["checks"]
    return [
        *_head(record, width),
        *_reasons(record["summary"], width),
        *_checks(checks, width),
        *_measured(checks, width),
        *_not_checked(checks, width),
        *_stderr(record["run"], width),
        (),
        *_foot(record, path, width),
    ]


def brief_lines(record: Tree, rows: Sequence[tuple[str, str]], *, width: int, path: str | None = None) -> list[Line]:
    """Lay out what needs attention, and then the verdict with about ten lines; `rows` are labels and texts."""
    checks: Sequence[Tree] = record["checks"]
    summary, run, subject = record["summary"], record["run"], record["subject"]
    bad = [check for group in by_check(checks).values() if wrong(group) for check in group]
    lines = _checks(bad, width)[2:] if bad else []
    # A payload that died may have left no finding of its own.
    lines += _stderr(run, width) if bad or run["payload"]["exit_code"] != 0 else []
    lines += [()] if lines else []
    name, image = title_of(record)
    outcome = f"{name or image}: {counted(summary)}. Exit code {summary['exit_code']}."
    lines += wrapped(outcome, width, first=f"{headline(summary)}  ", rest="  ", first_style=str(summary["verdict"]))
    for reason in summary["reasons"]:
        lines += wrapped(reason["message"], width, first=f"  {reason['code']}: ", rest="    ")
        if reason.get("advice"):
            lines += wrapped(reason["advice"], width, first="    -> ")
    size = f", {shown_size(subject['size_bytes'])}" if subject.get("size_bytes") else ""
    shown = [("image", f"{image}{size}"), ("inside", ", ".join(environment(record["env"])))]
    shown.append(("run", ", ".join([f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s"])))
    loader = next((found.sheets for entry, found in measured(checks) if entry.id == _LOADER), ())
    shown += [("loader", note) for sheet in loader[:1] for note in sheet.notes[:1]]
    skipped = {key: ids for key, ids in not_checked(checks).items() if key[1] != NOT_PROMISED}
    if skipped:
        count = sum(len(ids) for ids in skipped.values())
        (_, message), ids = max(skipped.items(), key=lambda item: len(item[1]))
        most = f"{len(ids)} of them: " if len(skipped) > 1 else ""
        shown.append(("left out", f"{count} {'finding' if count == 1 else 'findings'}: {most}{message}"))
    shown += [*rows, ("more", "-v shows every check; envkit verify --report html=report.html writes a page")]
    column = max(len(label) for label, _ in shown) + 2
    for label, text in shown:
        lines += wrapped(text, width, first=f"  {label.ljust(column)}", first_style="dim") if text else []
    return [*lines, *_kept(path, width)]


def _head(record: Tree, width: int) -> list[Line]:
    verdict = str(record["summary"]["verdict"])
    subject, run, env = record["subject"], record["run"], record["env"]
    name, image = title_of(record)
    title = f"{headline(record['summary'])}  {name + '  ' if name else ''}"
    lines: list[Line] = [(Span(title.rstrip(), verdict), Span("  " + fitted(image, max(width - cells(title) - 2, 20))))]
    facts = [f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s"]
    if subject.get("size_bytes"):
        facts.append(shown_size(subject["size_bytes"]))
    lines += wrapped(", ".join(clean(fact) for fact in facts), width, first="  ", style="dim")
    software_and_hardware = environment(env)
    if software_and_hardware:
        lines += wrapped(", ".join(software_and_hardware), width, first="  ", style="dim")
    return lines


def _reasons(summary: Tree, width: int) -> list[Line]:
    lines: list[Line] = []
    for reason in summary["reasons"]:
        lines += [(), *wrapped(reason["message"], width, first=f"{reason['code']}: ", rest="  ")]
        if reason.get("advice"):
            lines += wrapped(reason["advice"], width, first="  -> ")
    return lines


def _checks(checks: Sequence[Tree], width: int) -> list[Line]:
    """Return one line per check, followed by its findings other than PASS with their advice."""
    groups = by_check(check for check in checks if not unseen(check))
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
    """Return the findings of a check other than PASS; each advice is shown once."""
    lines: list[Line] = []
    findings = wrong(group)
    for index, item in enumerate(findings):
        label = f"{hang}{item['id']} " if len(group) > 1 else hang
        note = "" if item["verdict"] == verdict else f"{item['verdict']} "
        text = f"{note}{code_of(item)}: {item['message']}"
        lines += wrapped(text, width, first=label, rest=hang + "  ")
        # Several findings may have the same advice: it follows the last of them.
        later = {advice for other in findings[index + 1 :] for advice in other["advice"]}
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
    shown = fitted(tail, room) if tail and room >= 12 else ""  # noqa: PLR2004 - less is not readable
    return (Span(start[:2]), Span(start[2:], verdict), Span(head), Span("  " + shown if shown else "", "dim"))


def _measured(checks: Sequence[Tree], width: int) -> list[Line]:
    """Return every table that has rows, each under its heading."""
    lines: list[Line] = []
    for sheet in sheets(checks):
        rows = [[clean(cell) for cell in row] for row in sheet.rows]
        head, *others = aligned([sheet.head, *rows], indent="  ", left=sheet.left)
        lines += [(), (Span(sheet.title, "bold"),), (Span(head, "dim"),), *((Span(line),) for line in others)]
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
    # The bar keeps the image's output from being a command of a CI system, such as `::error::`.
    return lines + [(Span(f"  | {fitted(clean(line), width - 4)}"),) for line in tail[-10:]]


def _foot(record: Tree, path: str | None, width: int) -> list[Line]:
    summary = record["summary"]
    verdict = str(summary["verdict"])
    outcome = f"{counted(summary)}. Exit code {summary['exit_code']}."
    lines = wrapped(outcome, width, first=f"{headline(summary)}  ", rest="  ", first_style=verdict)
    return [*lines, *_kept(path, width)]


def _kept(path: str | None, width: int) -> list[Line]:
    # On one line, however long, so that it can be copied; 8 is the length of `record: `.
    return wrapped(path, max(width, cells(path) + 8), first="record: ") if path else []


def plain(line: Line) -> str:
    """Return the text of a line without trailing blanks."""
    return "".join(span.text for span in line).rstrip()


def wrapped(
    text: object, width: int, *, first: str, rest: str | None = None, style: str = "", first_style: str = ""
) -> list[Line]:
    """Wrap a paragraph; `first` begins its first line, `rest` (blanks by default) the others.

    CI systems run lines that begin with `::` or `##` as commands, so such lines get a bar in front.
    """
    hang = " " * cells(first) if rest is None else rest
    room = max(width, MIN_WIDTH)
    # textwrap returns no line for an empty text.
    pieces = textwrap.wrap(clean(text), room, initial_indent=first, subsequent_indent=hang, break_on_hyphens=False) or [
        first
    ]
    pieces = [piece[len(first if index == 0 else hang) :] for index, piece in enumerate(pieces)]
    safe = [piece if not piece.startswith(("::", "##")) else f"| {piece}" for piece in pieces]
    opening = [Span(first, first_style), *(Span(hang) for _ in safe[1:])]
    return [(span, Span(piece, style)) for span, piece in zip(opening, safe, strict=True)]
