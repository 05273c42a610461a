"""The outcomes of a fleet's last run, from which `--resume` builds only what failed or was not reached.

    STATE/fleets/<digest>.json

The digest covers the cells and everything that decides how and where their images are built. Each outcome is written
as soon as it is known, so a killed run can be resumed, too.
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
_KEPT = 20  # fleets
_DONE = ("built", "present")


def digest_of(cells: Sequence[Cell], tasks: Sequence[BuildTask]) -> str:
    """Return the hex digest of a fleet: the plans of its cells, and how and where they are built."""
    rows = [
        [cell.name, cell.plan.digest, task.engine, task.output, task.verify, list(task.tags), dict(task.options)]
        for cell, task in zip(cells, tasks, strict=True)
    ]
    # Sorted: with the cells in another order, it is still the same fleet.
    return hashlib.sha256(json.dumps(sorted(rows), sort_keys=True).encode()).hexdigest()


class LastRun:
    """The outcomes of one fleet in the state folder.

    Args:
        state: the state folder.
        digest: the fleet's digest.
    """

    def __init__(self, state: Path, digest: str) -> None:
        self.path = state / "fleets" / f"{digest}.json"
        self._outcomes: dict[str, dict[str, Any]] = {}

    def resume(self) -> dict[str, Outcome]:
        """Return the images that the last run finished, by name, and keep them as done in this run."""
        try:
            tree = json.loads(self.path.read_bytes())
            rows = tree["outcomes"] if tree["schema"] == SCHEMA else {}
            outcomes = {name: _outcome(row) for name, row in rows.items()}
        # With a file that is missing, damaged or of another version, nothing is resumed.
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        done = {
            name: outcome for name, outcome in outcomes.items() if outcome.status in _DONE and outcome.exit_code == 0
        }
        self._outcomes = {name: rows[name] for name in done}
        return done

    def begin(self) -> None:
        """Drop the outcomes of the run before, except those `resume` returned, and the oldest files of other fleets."""
        self._write()
        with contextlib.suppress(OSError):
            kept = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in kept[:-_KEPT]:
                old.unlink(missing_ok=True)

    def note(self, outcome: Outcome) -> None:
        """Save an outcome. Without a writable state folder the run goes on; only `resume` finds nothing."""
        row = asdict(outcome)
        # Without the record: the whole file is written again for every outcome.
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
