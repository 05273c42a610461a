"""What became of the last run of a fleet, so that the next one redoes only what failed or was not reached.

    STATE/fleets/<digest>.json

The digest is that of the cells and of everything that decides where their images go. A run adds each outcome as soon
as it is known, so a run that is killed has left what it did.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from envkit.fleet.model import BuildTask, Cell, Outcome
from envkit.ground.store import write_atomic

SCHEMA = "envkit.fleet-state/1"
_KEPT = 20  # fleets whose last run is remembered
_DONE = ("built", "present")


def digest_of(cells: Sequence[Cell], tasks: Sequence[BuildTask]) -> str:
    """The hex digest of what a fleet is: its cells' plans, and how and whereto they are built."""
    rows = [
        [cell.name, cell.plan.digest, task.engine, task.output, task.verify, list(task.tags), dict(task.options)]
        for cell, task in zip(cells, tasks, strict=True)
    ]
    return hashlib.sha256(json.dumps(sorted(rows), sort_keys=True).encode()).hexdigest()


class LastRun:
    """The outcomes of one fleet in the state folder.

    Args:
        state: the state folder.
        digest: of the fleet.
    """

    def __init__(self, state: Path, digest: str) -> None:
        self.path = state / "fleets" / f"{digest}.json"
        self._outcomes: dict[str, dict[str, Any]] = {}

    def resume(self) -> dict[str, Outcome]:
        """The images that the last run left built, by name; they count as done from here on."""
        try:
            tree = json.loads(self.path.read_bytes())
            rows = tree["outcomes"] if tree["schema"] == SCHEMA else {}
            outcomes = {name: _outcome(row) for name, row in rows.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        done = {
            name: outcome for name, outcome in outcomes.items() if outcome.status in _DONE and outcome.exit_code == 0
        }
        self._outcomes = {name: rows[name] for name in done}
        return done

    def begin(self) -> None:
        """Forget the run before, but for what `resume` gave, and the fleets whose last run is longest ago."""
        self._write()
        with contextlib.suppress(OSError):
            kept = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in kept[:-_KEPT]:
                old.unlink(missing_ok=True)

    def note(self, outcome: Outcome) -> None:
        """Keep an outcome. A state folder that cannot be written costs only what `resume` would have saved."""
        row = asdict(outcome)
        row["record"], row["details"] = None, list(outcome.details)
        self._outcomes[outcome.name] = row
        self._write()

    def _write(self) -> None:
        tree: Mapping[str, Any] = {"schema": SCHEMA, "outcomes": self._outcomes}
        with contextlib.suppress(OSError):
            write_atomic(self.path, json.dumps(tree, indent=1).encode() + b"\n")


def _outcome(row: Mapping[str, Any]) -> Outcome:
    known = {field.name for field in fields(Outcome)}
    values = {key: value for key, value in row.items() if key in known}
    if not all(isinstance(row[key], str) for key in ("name", "status")) or not isinstance(row["exit_code"], int):
        raise TypeError(f"{row!r:.80} is not an outcome")
    return Outcome(**{**values, "details": tuple(row["details"])})
