"""The record as Markdown, for a pull request or the summary of a CI step."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

from envkit.checks.reading import Tree
from envkit.ground.text import clean
from envkit.report.measured import BUSY, sheets
from envkit.report.reading import (
    VERDICTS,
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

_ICONS = {
    "PASS": "✅",
    "WARN": "⚠️",
    "FAIL": "❌",
    "ERROR": "🛑",
    "INCONCLUSIVE": "❔",
    "SKIP": "⏭️",
    "NOT_VERIFIED": "❔",
}
_SPECIAL = re.compile(r"([\\`*_\[\]#!|~])")
_MENTION = re.compile(r"(?<!\w)@")
_CUT = "\n\n*Cut off at the size limit.*\n"
_CELL = 400  # characters of a table's cell


def render_markdown(record: Tree, *, limit: int | None = None) -> bytes:
    """Return the verdict, the problems with advice, the measurements, and the list of checks.

    With `limit`, at most that many bytes: the list of checks is dropped first, then the measurements, then the end is
    cut off.
    """
    parts: list[Callable[[Tree], list[str]]] = [_head, _problems, _numbers, _checks]
    while True:
        lines = [line for part in parts for line in part(record)]
        data = ("\n".join(lines).rstrip("\n") + "\n").encode()
        if limit is None or len(data) <= limit:
            return data
        if len(parts) <= 2:  # noqa: PLR2004 - the verdict and the problems always stay
            room = max(limit - len(_CUT.encode()), 0)
            # The limit may divide a character, whose first bytes are dropped; then the last, incomplete line goes.
            kept = data[:room].decode(errors="ignore").rpartition("\n")[0]
            return (kept + _CUT).encode()[:limit]
        parts.pop()


def _head(record: Tree) -> list[str]:
    summary, run = record["summary"], record["run"]
    verdict = str(summary["verdict"])
    name, image = title_of(record)
    facts = [f"tier {run['tier']}", *ran_by(run), f"{run['duration_s']:.1f} s"]
    lines = [f"## {_ICONS.get(verdict, '❔')} {headline(summary)}: {text_only(name or image)}", ""]
    lines += [f"Image: {text_only(image)}", ""] if name else []
    for reason in summary["reasons"]:
        lines += [f"**{text_only(reason['code'])}**: {text_only(reason['message'])}", ""]
        lines += [f"→ {text_only(reason['advice'])}", ""] if reason["advice"] else []
    lines += [f"{counted(summary)}. Exit code {summary['exit_code']}.", ""]
    return [*lines, f"Ran with: {text_only(', '.join([*environment(record['env']), *facts]))}", ""]


def _problems(record: Tree) -> list[str]:
    groups = [(check, group) for check, group in by_check(record["checks"]).items() if wrong(group)]
    if not groups:
        return []
    groups.sort(key=lambda item: VERDICTS.index(worst(item[1])))
    lines = ["### Problems and what to do", ""]
    for check, group in groups:
        verdict = worst(group)
        lines += [f"#### {_ICONS[verdict]} {verdict} {text_only(check)} {text_only(group[0]['title'])}", ""]
        for item in wrong(group):
            lines.append(f"- **{text_only(item['id'])}** {text_only(code_of(item))}: {text_only(item['message'])}")
            lines += [f"  - → {text_only(line)}" for line in item["advice"]]
        lines.append("")
    return lines


def _numbers(record: Tree) -> list[str]:
    lines: list[str] = []
    for sheet in sheets(record["checks"]):
        head = [text_only(name) for name in sheet.head]
        lines += table(
            text_only(sheet.title), head, [[text_only(cell) for cell in row] for row in sheet.rows], left=sheet.left
        )
        remarks = [*sheet.notes, *(f"→ {line}" for line in sheet.advice), *([BUSY] if sheet.noisy else [])]
        lines += [*(f"- {text_only(line)}" for line in remarks), ""] if remarks else []
    return ["### What was measured", "", *lines] if lines else []


def _checks(record: Tree) -> list[str]:
    rows = []
    for check, group in by_check(item for item in record["checks"] if not unseen(item)).items():
        verdict = worst(group)
        text = "; ".join(str(item["message"]) for item in group if item["verdict"] != "SKIP" and not neutral(item))
        short = text if len(text) <= _CELL else text[:_CELL] + "…"
        rows.append(
            [f"{_ICONS[verdict]} {verdict}", text_only(f"{check} {group[0]['title']}"), text_only(short or "-")]
        )
    skipped = [
        [text_only(code), text_only(message), text_only(", ".join(dict.fromkeys(ids)))]
        for (code, message), ids in not_checked(record["checks"]).items()
    ]
    return [
        "<details><summary>All checks</summary>",
        "",
        *table("", ["Verdict", "Check", "Found"], rows),
        *table("Not checked", ["Reason", "Meaning", "Findings"], skipped),
        "</details>",
    ]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Return a table; the first `left` columns are text, the others numbers; without `left` all are text."""
    if not rows:
        return []
    lines = [f"**{title}**", ""] if title else []
    texts = len(head) if left is None else left
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * texts}{'---:|' * (len(head) - texts)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def text_only(text: object) -> str:
    """Escape a text so that it contains no markup, link, mention or table cell; text in backticks becomes code."""
    parts = clean(text).split("`")
    # An odd number of backticks has one without a partner, so none of them is markup.
    if len(parts) % 2 == 0:
        return _plain(clean(text))
    return "".join(_code(part) if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(text: str) -> str:
    # GitHub looks for mentions after it resolves escapes, so a zero-width space follows the @.
    without_mentions = _MENTION.sub("@\u200b", html.escape(text, quote=False))
    return _SPECIAL.sub(r"\\\1", without_mentions)


def _code(text: str) -> str:
    # In a table, a bar ends the cell even within code.
    shown = text.replace("|", "\\|")
    return f"`{shown}`" if text.strip() else ""
