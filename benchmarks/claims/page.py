"""The tables of docs/claims.md, and the same figures as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.claims.figures import FIGURES
from benchmarks.claims.model import Claim, load
from benchmarks.claims.reading import Answer, Findings, Part
from envkit.report.reading import environment
from envkit.verify.again import read_record

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "claims.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
_DIGITS = 3
Record = Mapping[str, Any]
Records = Mapping[str, Record]


def committed() -> Records:
    """Return the committed records by name.

    Raises:
        UsageError: a file is not a record.
        IntegrityError: a record was changed after it was written.
    """
    return {path.stem: read_record(path) for path in sorted(RESULTS.glob("*.json"))}


def answer(claim: Claim, record: Record) -> Answer:
    """Return a record's answer to a claim."""
    if not claim.figure:
        return Answer((), f"not measured: {claim.unmeasured}")
    return Findings(record).answer(claim.checks, FIGURES[claim.figure])


def machines(records: Records) -> dict[str, Records]:
    """Return the records of each machine, whose name is the part of a record's name before the first dot.

    Raises:
        ValueError: records with the same machine name come from different machines or torch versions.
    """
    by_machine: dict[str, dict[str, Record]] = {}
    for name, record in records.items():
        by_machine.setdefault(name.partition(".")[0], {})[name] = record
    for name, group in by_machine.items():
        envs = [record["env"] for record in group.values()]
        marks = {(env["fingerprint"]["hw"], env["sw"].get("torch")) for env in envs}
        if len(marks) > 1:
            raise ValueError(f"{name}: records of {len(marks)} machines or torch versions under one name")
    return {**by_machine}


def chosen(claim: Claim, records: Records) -> tuple[str, Answer]:
    """Return the record that answers a claim best, and its answer: the one with most usable numbers, then the newest.

    A record is chosen by how many numbers its noise gates let through, never by the numbers themselves.
    """
    answers = {name: answer(claim, record) for name, record in records.items()}

    def order(name: str) -> tuple[int, bool, str]:
        usable = sum(part.value is not None for part in answers[name].parts)
        return usable, not answers[name].absent, str(records[name]["run"]["started"])

    best = max(answers, key=order)
    return best, answers[best]


def tables(records: Records) -> str:
    """Return the part of the page between its marks."""
    parts = [_machines(records)]
    for topic, group in groupby(load(), key=lambda claim: claim.topic):
        claims = list(group)
        parts += [f"## {topic}", "\n".join(_table(claims, records)), *(_known(claim) for claim in claims)]
    return "\n\n".join(parts)


def page(records: Records) -> str:
    """Return the whole page with current tables."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables(records)}\n{END}{after}"


def text(records: Records) -> str:
    """Return the same figures as text for a terminal."""
    lines = [f"{name}: {_machine(record)}" for name, record in records.items()]
    for claim in load():
        lines += ["", f"{claim.id}: {claim.says}"]
        for name, record in records.items():
            result = answer(claim, record)
            lead = f"  {name}: " if len(records) > 1 else "  "
            shown = [shown_part(part) for part in result.parts] or [result.why]
            lines += [lead + line for line in (*shown, *_outcome(claim, result, record))]
        if claim.command:
            lines.append(f"  $ {claim.command}")
    return "\n".join(lines)


def shown_part(part: Part) -> str:
    """Return a part as one line: label, number, spread."""
    if part.value is None:
        return f"{part.label}: {part.why}"
    low_high = "" if part.spread is None else f" ({_number(part.spread[0], part)} to {_number(part.spread[1], part)})"
    unit = {"x": "×", "share": " %"}.get(part.unit, f" {part.unit}")  # noqa: RUF001 - the multiplication sign
    return f"{part.label}: {_number(part.value, part)}{unit}{low_high}"


def _number(value: float, part: Part) -> str:
    scaled = 100 * value if part.unit == "share" else value
    if scaled and abs(scaled) < 10**-_DIGITS:
        return f"{scaled:.0e}"
    figure = f"{scaled:.{_DIGITS}g}"
    return f"{float(figure):.0f}" if "e+" in figure else figure


def _outcome(claim: Claim, result: Answer, record: Record) -> Iterator[str]:
    """Yield how many of the figures are as claimed; nothing if the claim has no number."""
    if claim.gpu and result.parts and not record["env"]["gpu"]:
        yield "a CPU; the claim is about GPUs"
        return
    values = [part.value for part in result.parts if part.claimed and part.value is not None]
    if values and not (claim.least is None and claim.most is None):
        yield f"as claimed: {sum(claim.holds(value) for value in values)} of {len(values)}"


def _machines(records: Records) -> str:
    if not records:
        return "No record is committed yet."
    rows = [
        f"| [{name}](../benchmarks/results/{name}.json) | {_machine(record)} | {record['run']['tier']} | "
        f"{record['run']['started'][:10]} |"
        for name, record in records.items()
    ]
    return "\n".join(["| record | machine and software | tier | measured |", "|---|---|---|---|", *rows])


def _machine(record: Record) -> str:
    return ", ".join(environment(record["env"]))


def _table(claims: Sequence[Claim], records: Records) -> Iterator[str]:
    groups = machines(records)
    yield f"| claim | {' | '.join(['check', *(f'measured: {name}' for name in groups)])} |"
    yield "|---" * (2 + len(groups)) + "|"
    for claim in claims:
        cells = [_cell(claim, group) for group in groups.values()]
        yield f"| {' | '.join([f'**{claim.id}**: {claim.says}', ', '.join(claim.checks) or '-', *cells])} |"


def _cell(claim: Claim, records: Records) -> str:
    name, result = chosen(claim, records)
    shown = [shown_part(part) for part in result.parts] or [result.why]
    outcome = [f"**{line}**" for line in _outcome(claim, result, records[name])]
    source = [f"*{name}*"] if result.parts and len(records) > 1 else []
    return "<br>".join(_plain(line) for line in (*shown, *outcome, *source))


def _plain(line: str) -> str:
    return line.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _known(claim: Claim) -> str:
    sources = "; ".join(claim.sources)
    command = f"\n  `{claim.command}`" if claim.command else ""
    return f"- **{claim.id}**: {claim.known} *({sources})*{command}"
