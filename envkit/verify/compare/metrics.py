"""The metrics of one launch: one number per timed observation, with its unit and direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One metric of one launch.

    `clock` is `cpu` for CPU time, which does not advance while another process uses the CPU, and `wall` for everything
    else; `gate` is `clean`, or the reason why wall times of this launch are unreliable; `pressure` is the share of the
    time in which any process waited for a CPU.
    """

    id: str
    subject: str
    name: str
    value: float
    unit: str
    better: str  # 'higher' | 'lower'
    clock: str
    gate: str = CLEAN
    pressure: float = 0.0


def readings(record: Mapping[str, Any]) -> dict[str, Reading]:
    """Return the metrics of a record by `id@subject`: every observation with samples that ran and is not an ERROR.

    CPU time is the minimum of the samples, because other processes only add to it, through caches and shared cores. For
    wall time it is the metric in the record, else the median of the samples.
    """
    return readings_of(record["checks"])


def readings_of(checks: Iterable[Mapping[str, Any]]) -> dict[str, Reading]:
    """Return the metrics of a record's checks; see `readings`."""
    parsed = (_reading(check) for check in checks)
    return {f"{item.id}@{item.subject}": item for item in parsed if item is not None}


def body_factor(record: Mapping[str, Any]) -> float:
    """Return how often the timed work was repeated on purpose; 1 in a normal run."""
    return max([1.0, *(float((check["samples"] or {}).get("body_factor", 1)) for check in record["checks"])])


def _reading(check: Mapping[str, Any]) -> Reading | None:
    samples, metric = check.get("samples"), check.get("metric")
    if not isinstance(samples, dict) or check.get("status") != "ran" or check.get("verdict") == "ERROR":
        return None
    identity: dict[str, Any] = {"id": str(check["id"]), "subject": str(check["subject"])}
    noise = check.get("noise") or {}
    gate = str(noise.get("gate", "no noise reading"))
    pressure = noise.get("psi_cpu_some")
    common: dict[str, Any] = {
        **identity,
        "gate": gate,
        "pressure": float(pressure) if isinstance(pressure, int | float) else 0.0,
    }
    spent = _positive(samples.get("cpu_values"))
    if spent:
        return Reading(
            **common, name="processor_time", value=min(spent), unit=str(samples["unit"]), better="lower", clock="cpu"
        )
    if isinstance(metric, dict) and metric.get("better") in ("higher", "lower") and _positive([metric.get("value")]):
        return Reading(
            **common,
            name=str(metric["name"]),
            value=float(metric["value"]),
            unit=str(metric["unit"]),
            better=str(metric["better"]),
            clock="wall",
        )
    values = _positive(samples.get("values"))
    # Samples alone do not say which direction is better; of times it is known.
    if not values or samples.get("unit") not in ("ms", "s", "us"):
        return None
    return Reading(**common, name="time", value=median(values), unit=str(samples["unit"]), better="lower", clock="wall")


def _positive(values: Any) -> list[float]:
    """Return the values as numbers, or an empty list unless all of them are finite and above zero."""
    sound = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        for value in values
    )
    return [float(value) for value in values] if sound else []
