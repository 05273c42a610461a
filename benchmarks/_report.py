"""The output of benchmarks: a table, then one JSON object for programs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure, its goal and what it was measured against."""

    name: str
    figure: float
    unit: str
    better: str  # 'lower' | 'higher'
    goal: float
    against: str

    @property
    def holds(self) -> bool:
        """Whether the goal is met."""
        return self.figure <= self.goal if self.better == "lower" else self.figure >= self.goal


def tell(text: str) -> None:
    """Print a text. A reader that closed the pipe (`| head`) is not an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Discard what is left in the buffer, or Python reports the broken pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finish(name: str, figures: list[Figure]) -> int:
    """Print the table and the JSON line; return 0 if every goal holds, else 1."""
    width = max(len(item.name) for item in figures)
    for item in figures:
        sign = "<=" if item.better == "lower" else ">="
        state = "holds" if item.holds else "MISSED"
        print(
            f"{item.name:<{width}}  {item.figure:>10.2f} {item.unit:<4} goal {sign} {item.goal:g}  {state}  "
            f"({item.against})"
        )
    worst = max(figures, key=_distance)
    holds = all(item.holds for item in figures)
    line = {
        "name": name,
        "figure": round(worst.figure, 3),
        "unit": worst.unit,
        "better": worst.better,
        "goal": worst.goal,
        "holds": holds,
        "against": worst.against,
        "figures": {item.name: round(item.figure, 3) for item in figures},
    }
    print(json.dumps(line))
    return 0 if holds else 1


def _distance(item: Figure) -> float:
    """Return how far a figure is from its goal: above 1 if it misses the goal."""
    least = 1e-9  # because a figure or a goal may be 0
    return item.figure / max(item.goal, least) if item.better == "lower" else item.goal / max(item.figure, least)
