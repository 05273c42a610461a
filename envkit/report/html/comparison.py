"""The page of a comparison (`envkit.compare/1`): the interval of every metric, and the launches of both images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from envkit.checks.reading import Tree, is_number, mapping, number, sequence
from envkit.checks.sheet import HIGHER, LOWER, Interval, Intervals, Sheet, Sides, Tile, cell, short
from envkit.ground.text import clean
from envkit.report.environment import without_identifiers
from envkit.report.html.charts import draw
from envkit.report.html.frame import render_page
from envkit.report.reading import metric_title

SECTIONS = {
    "verdict": "Verdict",
    "intervals": "Intervals",
    "launches": "Launches",
    "metrics": "Numbers",
    "record": "Record",
}
# Verdict -> the badge's verdict, and the color of an interval.
# Most severe first, which is also the order of the rows.
_KINDS = {
    "REGRESSION": ("FAIL", "fail"),
    "INCONCLUSIVE": ("INCONCLUSIVE", "unclear"),
    "IMPROVEMENT": ("PASS", "pass"),
    "SAME": ("PASS", "skip"),
}
_MEANINGS = {
    "REGRESSION": "B is slower than A",
    "INCONCLUSIVE": "the launches cannot show whether B is slower than A",
    "IMPROVEMENT": "B is faster than A, and nothing is slower",
    "SAME": "B is not slower than A",
}


def render_html(tree: Tree) -> bytes:
    """Return a comparison as one self-contained page. The same comparison gives the same bytes."""
    tree = without_identifiers(tree)
    rows = sorted(map(mapping, sequence(tree["metrics"])), key=lambda row: list(_KINDS).index(_change(row)))
    verdict = str(tree["verdict"])
    return render_page(
        "comparison.html",
        title=f"{verdict}: {tree['first']['name']} and {tree['second']['name']}",
        brand="envkit comparison",
        sections=SECTIONS,
        document=tree,
        verdict=_KINDS.get(verdict, ("ERROR", ""))[0],
        verdict_text=verdict,
        meaning=_MEANINGS.get(verdict, "A and B"),
        names=[tree["first"]["name"], tree["second"]["name"]],
        facts=_facts(tree),
        notes=tree["notes"],
        tiles=_tiles(tree, rows),
        intervals=_intervals(rows),
        launches=[_launches(index, row) for index, row in enumerate(rows) if row["first"] and row["second"]],
        changed=[
            (_KINDS[_change(row)][0], _change(row), _name(row), row["reason"]) for row in rows if _change(row) != "SAME"
        ],
        metrics=_sheet(rows),
        rule=_rule(tree),
    )


def _change(row: Tree) -> str:
    return str(row["change"]) if row["change"] in _KINDS else "INCONCLUSIVE"


def _name(row: Tree) -> str:
    return clean(metric_title(str(row["key"])))


def _facts(tree: Tree) -> list[str]:
    return [
        f"exit code {tree['exit_code']}",
        f"launches {'alternated' if tree['interleaved'] else 'did not alternate'}",
    ]


def _rule(tree: Tree) -> str:
    """Return what the numbers had to reach, in words."""
    required = f"A difference needs p below {mapping(tree['rule']).get('level')} (Holm)"
    if not is_number(tree["smallest_p"]):
        return f"{required}."
    return f"{required}; the smallest that these launches and metrics can reach is {tree['smallest_p']:.4f}."


def _tiles(tree: Tree, rows: Sequence[Tree]) -> list[Tile]:
    counts = [len(sequence(tree[side]["launches"])) for side in ("first", "second")]
    tiles = [Tile("Launches", " and ".join(map(str, counts)), "of A and of B")]
    tiles.append(Tile("Metrics", str(len(rows)), f"{sum(_change(row) == 'SAME' for row in rows)} without a difference"))
    slower = [(_slower(row), row) for row in rows if row["interval"]]
    if slower:
        factor, row = max(slower, key=lambda pair: pair[0])
        tiles.append(Tile("Largest slowdown of B", f"{(factor - 1) * 100:+.0f}%", _name(row), LOWER))
    return tiles


def _slower(row: Tree) -> float:
    """Return how many times slower B is than A by a metric."""
    estimate = float(row["interval"]["estimate"])
    return estimate if row["better"] == "lower" else 1 / estimate


def _intervals(rows: Sequence[Tree]) -> Any:
    intervals = [
        _interval(row, mapping(row["interval"])) for row in rows if row["interval"] and row["least"] is not None
    ]
    if not intervals:
        return None
    summary = "; ".join(f"{row.name} {row.low:.3f} to {row.high:.3f}" for row in intervals)
    return draw(Intervals("ratios", "B over A, with confidence intervals", f"{summary}.", intervals, "as fast as A"))


def _interval(row: Tree, interval: Mapping[str, float]) -> Interval:
    change = _change(row)
    better = LOWER if row["better"] == "lower" else HIGHER
    return Interval(
        name=f"{_name(row)}, {better}",
        low=interval["low"],
        estimate=interval["estimate"],
        high=interval["high"],
        least=row["least"],
        label=f"{interval['estimate']:.3f} {change}",
        kind=_KINDS[change][1],
    )


def _launches(index: int, row: Tree) -> Any:
    sides = [("A", row["first"]), ("B", row["second"])]
    summary = "; ".join(f"{name}: {len(values)} launches, median {short(median(values))}" for name, values in sides)
    better = LOWER if row["better"] == "lower" else HIGHER
    return draw(Sides(f"launches-{index}", _name(row), f"{summary} {row['unit']}.", sides, clean(row["unit"]), better))


def _sheet(rows: Sequence[Tree]) -> Sheet:
    head = ("Metric", "Verdict", "A", "B", "Unit", "B / A", "Interval", "p (Holm)", "Left out", "Observation")
    return Sheet("Every metric", head, [_cells(row) for row in rows], left=2)


def _cells(row: Tree) -> list[str]:
    interval = mapping(row["interval"])
    low, high, estimate = (number(interval.get(name)) for name in ("low", "high", "estimate"))
    middles = [short(median(row[side])) if row[side] else "-" for side in ("first", "second")]
    shown = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else "-"
    return [
        _name(row),
        _change(row),
        *middles,
        clean(row["unit"]),
        cell(estimate, ".3f"),
        shown,
        cell(number(row["p_holm"]), ".4f"),
        str(row["left_out"]),
        clean(row["key"] if row["clock"] == "cpu" else f"{row['key']} ({row['name']})"),
    ]
