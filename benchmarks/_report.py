"""How a benchmark prints, and what every one prints last: one JSON object a program can read."""

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
    """Print a text. A reader that has enough and went away (`| head`) is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer goes nowhere, else Python complains of it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finish(name: str, figures: list[Figure]) -> int:
    """Print the table and the JSON line; 0 when every goal holds."""
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
    """Return how far a figure is from its goal: above 1 where it misses it."""
    least = 1e-9  # a figure or a goal of 0
    return item.figure / max(item.goal, least) if item.better == "lower" else item.goal / max(item.figure, least)
