"""The limits, kinds and texts of `symptoms.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml

_FILE = Path(__file__).with_name("symptoms.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of limit of a training."""

    id: str
    title: str
    headline: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """All data that a judgment needs besides a record."""

    limits: dict[str, float]
    gains: dict[str, tuple[float, float]]
    kinds: dict[str, Kind]
    advice: dict[str, str]
    doings: dict[str, str]  # texts for what a thread does while the model waits
    sources: dict[str, str]  # of limits and gains

    def limit(self, name: str) -> float:
        """Return a limit; its unit is described in the file."""
        return self.limits[name]

    def gain(self, name: str) -> tuple[float, float]:
        """Return the lowest and the highest factor by which a change makes its part of a step faster."""
        return self.gains[name]

    def text(self, ident: str, **values: object) -> str:
        """Return the text of an advice with its values filled in."""
        return self.advice[ident].format(**values)


@cache
def load() -> Symptoms:
    """Read `symptoms.yaml`."""
    tree: Any = strictyaml.read_file(_FILE)
    rows = tree["limits"] | tree["gains"]
    return Symptoms(
        limits={name: float(row["value"]) for name, row in tree["limits"].items()},
        gains={name: (float(row["low"]), float(row["high"])) for name, row in tree["gains"].items()},
        kinds={row["id"]: Kind(**row) for row in tree["kinds"]},
        advice=dict(tree["advice"]),
        doings=dict(tree["doings"]),
        sources={name: str(row["source"]) for name, row in rows.items()},
    )
