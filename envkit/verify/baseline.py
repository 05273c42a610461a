"""Baselines: measurements of earlier launches on a machine, with their spread, and the check of a run against them.

A baseline is a file that a person keeps and edits; checking a run against it never changes it. The key of an entry is
the fingerprints `hw` and `policy`, not the host's name. The software is not in the key, because it is what is tested.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from envkit.checks.model import Finding, Verdict
from envkit.ground import trees
from envkit.ground.errors import UsageError
from envkit.ground.store import write_atomic
from envkit.verify.compare.decide import Rule
from envkit.verify.compare.metrics import CLEAN, readings, readings_of
from envkit.verify.compare.statistics import relative_mad
from envkit.verify.judge import Judged
from envkit.verify.record import MAX_FILE, check_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from envkit.verify.compare.metrics import Reading

SCHEMA = "envkit.baseline/1"
CHECK = "S07"
TITLE = "no slower than the baseline"
MAX_LAUNCHES = 100
"""Launches kept per metric; the oldest ones are removed."""
_MAKE = "envkit verify IMAGE --write-baseline FILE --reason TEXT  # adds this run"
_BUSY = ("Run it again while nothing else uses this machine.",)
_DECIDE = ("One launch is not significant; to decide, run: envkit compare OLD_IMAGE NEW_IMAGE",)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline file; `tree` is plain JSON."""

    name: str
    tree: Mapping[str, Any]

    def excerpt(self, fingerprint: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the part of the baseline for this fingerprint, for the record; `metrics` is None without an entry."""
        entry = _entry(self.tree["entries"], fingerprint)
        kept = {"file": self.name, "hw": fingerprint["hw"], "policy": fingerprint["policy"]}
        if entry is None:
            return {**kept, "others": len(self.tree["entries"]), "metrics": None}
        return {**kept, "metrics": {key: _spread(item) for key, item in entry["metrics"].items()}}


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UsageError: the file does not exist, or is not a baseline file.
    """
    tree = trees.from_json_file(path, MAX_FILE, hint=_MAKE)
    try:
        _check(tree)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not a baseline file ({SCHEMA}): {error!r:.200}", hint=_MAKE) from error
    return Baseline(path.name, tree)


def add_run(path: Path, record: Mapping[str, Any], *, by: str, reason: str, today: str) -> int:
    """Add one run's metrics to the file, which is created if missing; return how many were added.

    Wall-clock metrics of a busy machine are left out. `today` is an ISO date.

    Raises:
        UsageError: the file is not a baseline file, or has the run already, or the run has no usable metrics.
        OSError: the file cannot be written.
    """
    tree: dict[str, Any] = {"schema": SCHEMA, "entries": []}
    if path.exists():
        tree = dict(read_baseline(path).tree)
    # A busy machine lengthens wall time, but not the CPU time of a process.
    metrics = {key: item for key, item in readings(record).items() if item.clock == "cpu" or item.gate == CLEAN}
    fingerprint, run = record["env"]["fingerprint"], record["run"]
    if not metrics or fingerprint["hw"] is None:
        raise UsageError("this run has no timing that can be a baseline", hint="run it on a quiet machine")
    entry = _entry(tree["entries"], fingerprint)
    if entry is None:
        entry = {"hw": fingerprint["hw"], "policy": fingerprint["policy"], "machine": _machine(record)}
        entry |= {"metrics": {}, "changes": []}
        tree["entries"] = [*tree["entries"], entry]
    # Adding a launch twice would narrow the spread without a new measurement.
    if any(change["run"] == run["id"] for change in entry["changes"]):
        raise UsageError(f"{path} already has the run {run['id']}")
    for key, item in metrics.items():
        kept = entry["metrics"].setdefault(key, _empty(item))
        launch = {"value": item.value, "date": today, "sw": fingerprint["sw"]}
        kept["launches"] = [*kept["launches"], launch][-MAX_LAUNCHES:]
        kept |= _spread(kept)
    entry["changes"].append({"run": run["id"], "date": today, "accepted_by": by, "reason": reason})
    write_atomic(path, json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    return len(metrics)


def held_to(judged: Sequence[Judged], excerpt: Mapping[str, Any] | None) -> tuple[Judged, ...]:
    """Return one finding per metric of the baseline, or one with the reason why there is none. They only inform."""
    if excerpt is None:
        return ()
    if excerpt["metrics"] is None:
        message = f"{excerpt['file']} has no entry for machine {excerpt['hw']} with policy {excerpt['policy']}"
        message += f"; other entries: {excerpt['others']}" if excerpt["others"] else "; it is empty"
        return (_judged(CHECK, "host", Finding(Verdict.SKIP, message, "NO_BASELINE", (f"Add it: {_MAKE}",), _INFORMS)),)
    metrics = readings_of(check_tree(item) for item in judged)
    known = excerpt["metrics"]
    missing = [key for key in known if key not in metrics]
    rows = [_held(item, known[key]) for key, item in metrics.items() if key in known]
    if missing:
        message = f"not measured this time: {', '.join(missing)}"
        rows.append(_judged(CHECK, "host", Finding(Verdict.SKIP, message, "NOT_MEASURED", rule=_INFORMS)))
    return tuple(rows)


_INFORMS = {"type": "not_worse_than_baseline", "gates": False}


def _held(item: Reading, known: Mapping[str, Any]) -> Judged:
    rule = Rule.shipped()
    middle, spread = float(known["median"]), float(known["relative_mad"])
    least = max(rule.least_effect, rule.mads * spread)
    applied = {**_INFORMS, "baseline": dict(known), "least_effect": rule.least_effect, "mads": rule.mads}
    slower = item.value / middle if item.better == "lower" else middle / item.value
    metric = {"name": item.name, "value": item.value, "unit": item.unit, "better": item.better}
    text = f"{item.value:.4g} {item.unit}, {slower:.2f} times as slow as the median of {known['n_processes']} launches"
    derived = {"slower": slower, "least": least}
    if known["n_processes"] < rule.launches:
        message = f"{text}; {rule.launches} launches are needed"
        finding = Finding(Verdict.SKIP, message, "BASELINE_THIN", (f"Add runs: {_MAKE}",))
    elif item.clock != "cpu" and item.gate != CLEAN:
        finding = Finding(Verdict.INCONCLUSIVE, f"{text}; the machine was busy ({item.gate})", "NOISY", _BUSY)
    elif slower > 1 + least:
        finding = Finding(Verdict.WARN, f"{text}; the limit is {1 + least:.2f}", "SLOWER_THAN_BASELINE", _DECIDE)
    else:
        finding = Finding(Verdict.PASS, text)
    whole = Finding(
        finding.verdict, finding.message, finding.reason_code, finding.advice, applied, metric=metric, derived=derived
    )
    return _judged(f"{CHECK}.{item.id}", item.subject, whole)


def _judged(check: str, subject: str, finding: Finding) -> Judged:
    return Judged(id=check, title=TITLE, subject=subject, finding=finding)


def _spread(item: Mapping[str, Any]) -> dict[str, Any]:
    values = [float(launch["value"]) for launch in item["launches"]]
    return {
        "median": median(values),
        "relative_mad": relative_mad(values),
        "n_processes": len(values),
        "n_days": len({launch["date"] for launch in item["launches"]}),
    }


def _empty(item: Reading) -> dict[str, Any]:
    return {"name": item.name, "unit": item.unit, "better": item.better, "clock": item.clock, "launches": []}


def _entry(entries: Iterable[Any], fingerprint: Mapping[str, str | None]) -> dict[str, Any] | None:
    wanted = (fingerprint["hw"], fingerprint["policy"])
    return next((entry for entry in entries if (entry["hw"], entry["policy"]) == wanted), None)


def _machine(record: Mapping[str, Any]) -> dict[str, Any]:
    host, gpus = record["env"]["host"], record["env"]["gpu"]
    return {"processor": host.get("cpu_model"), "gpus": [gpu.get("name") for gpu in gpus]}


def _check(tree: Any) -> None:
    """Raise KeyError, TypeError or ValueError if a field is missing or has another type or value."""
    if tree["schema"] != SCHEMA:
        raise ValueError(f"schema is {tree['schema']!r}")
    for entry in tree["entries"]:
        if not isinstance(entry["changes"], list):
            raise TypeError("changes is not a list")
        for text in (entry["hw"], entry["policy"]):
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is not a fingerprint")
        for item in entry["metrics"].values():
            # Values are divided by each other, and the spread by their median.
            if not item["launches"] or any(float(launch["value"]) <= 0 for launch in item["launches"]):
                raise ValueError("a metric needs launches with values above 0")
            _spread(item)  # only for its errors
