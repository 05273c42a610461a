"""The report on a fleet: as JSON, as table rows and as one exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envkit.fleet import REPORT_SCHEMA
from envkit.fleet.model import Cell, Impossible, Outcome
from envkit.report.reading import word

# Most severe first: interrupted runs and bugs, then failures, impossible cells, and images that are only not
# verified. docs/fleet.md shows this order.
SEVERITY = (130, 143, 1, 10, 6, 8, 9, 124, 7, 4, 2, 3, 5, 0)
COLUMNS = ["image", "outcome", "seconds", "where, or why not"]


def exit_code(outcomes: Sequence[Outcome], impossible: Sequence[Impossible] = (), *, skip: bool = False) -> int:
    """Return the most severe exit code; impossible cells count as 3 unless `skip` is set."""
    return most_severe({outcome.exit_code for outcome in outcomes} | ({3} if impossible and not skip else set()))


def most_severe(codes: Iterable[int]) -> int:
    """Return the most severe exit code; an unknown one comes first, and without any it is 0."""
    return min(codes, key=lambda code: SEVERITY.index(code) if code in SEVERITY else -1, default=0)


def counts(outcomes: Sequence[Outcome], impossible: Sequence[Impossible] = ()) -> str:
    """Return a summary such as `20 built, 3 already there, 1 failed; 2 impossible`."""
    totals = Counter(outcome.status for outcome in outcomes)
    parts = [
        f"{totals[status]} {word(status)}"
        for status in ("built", "present", "unproved", "failed", "stopped")
        if totals[status]
    ]
    text = ", ".join(parts) or "nothing to build"
    return f"{text}; {len(impossible)} impossible" if impossible else text


def rows(
    outcomes: Sequence[Outcome], impossible: Sequence[Impossible] = (), cells: Sequence[Cell] = ()
) -> list[list[str]]:
    """Return the rows of the table (see `COLUMNS`); further names of equal plans and impossible cells come last."""
    table = [
        [
            outcome.name,
            word(outcome.status),
            f"{outcome.duration_s:.1f}",
            (outcome.error if outcome.exit_code else outcome.place) or outcome.place or "",
        ]
        for outcome in outcomes
    ]
    table += [[name, "equal", "", f"the same image as {cell.name}"] for cell in cells for name in cell.also]
    return [*table, *([rejected.name, "impossible", "", rejected.reason] for rejected in impossible)]


def document(
    cells: Sequence[Cell],
    outcomes: Sequence[Outcome],
    impossible: Sequence[Impossible],
    *,
    where: str,
    duration_s: float,
    jobs: int | None,
    skip: bool,
) -> dict[str, Any]:
    """Return the report as a JSON-ready tree.

    Args:
        cells: in the order of the matrix.
        outcomes: of the cells, in any order.
        impossible: cells without compatible versions.
        where: the matrix file, or another source of the images.
        duration_s: of the whole run.
        jobs: parallel builds; None on a cluster, where the scheduler decides.
        skip: whether impossible cells are ignored in the exit code.
    """
    by_name = {outcome.name: outcome for outcome in outcomes}
    return {
        "schema": REPORT_SCHEMA,
        "matrix": where,
        "exit_code": exit_code(outcomes, impossible, skip=skip),
        "jobs": jobs,
        "duration_s": round(duration_s, 3),
        "images": [_image(cell, by_name[cell.name]) for cell in cells if cell.name in by_name],
        "impossible": [
            {"name": rejected.name, "axes": dict(rejected.axes), "reason": rejected.reason, "hint": rejected.hint}
            for rejected in impossible
        ],
    }


def _image(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    failed: Mapping[str, Any] | None = None
    if outcome.error is not None:
        failed = {"message": outcome.error, "hint": outcome.hint, "details": list(outcome.details)}
    record = outcome.record
    return {
        "name": cell.name,
        "axes": dict(cell.axes),
        "also": list(cell.also),
        "plan": cell.plan.digest,
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "digest": outcome.digest,
        "place": outcome.place,
        "worker": outcome.worker,
        "duration_s": round(outcome.duration_s, 3),
        "figures": dict(outcome.figures),
        "log": outcome.log,
        "failure": failed,
        "verification": None if record is None else {"verdict": record["summary"]["verdict"], "record": dict(record)},
    }
