"""The benchmark tables of a report: page-locked memory, mixed precision, data loading."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envkit.report.lines import Line, Span, clean, table
from envkit.report.reading import is_number, mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COPY = re.compile(r"C10\.(h2d|d2h)_(pinned|pageable)_(\d+)MiB")
_BENCH = re.compile(r"C14\.bench\.([^.]+)\.([^.]+)")
_MIB = 1 << 20
_WORKLOADS = {"cpu": "decoding", "io": "storage"}
_BUSY = "The machine was busy while some of this was timed; take it as a hint."
_INDENT = "  "


def benchmark_tables(checks: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Every benchmark table that has a row, each under its heading."""
    lines: list[Line] = []
    for heading, family, body in (
        ("Page-locked (pinned) against pageable memory, GB/s", "C10.", _transfers(checks)),
        ("Mixed precision, one training step", "C14.bench.", _precisions(checks)),
        ("Data loading, samples per second", "C12.throughput.", _loaders(checks)),
    ):
        if body:
            lines += [(), (Span(heading, "bold"),), *body]
            timed = [check for check in checks if str(check.get("id")).startswith(family)]
            if any(check.get("reason_code") == "NOISY" for check in timed):
                lines.append((Span(f"{_INDENT}{_BUSY}", "dim"),))
    return lines


def _transfers(checks: Sequence[Mapping[str, Any]]) -> list[Line]:
    rates: dict[int, dict[str, float]] = {}
    for check in checks:
        found = _COPY.fullmatch(str(check.get("id")))
        rate = mapping(check.get("observed")).get("gb_per_s")
        if found and is_number(rate):
            rates.setdefault(int(found[3]), {})[f"{found[1]}_{found[2]}"] = rate
    rows = [
        [f"{size} MiB", *(cell for way in ("h2d", "d2h") for cell in _pair(by_name, way))]
        for size, by_name in sorted(rates.items())
    ]
    head = ["size", "H2D pinned", "pageable", "ratio", "D2H pinned", "pageable", "ratio"]
    return table(head, rows, indent=_INDENT) if rows else []


def _pair(by_name: Mapping[str, float], way: str) -> list[str]:
    pinned, pageable = by_name.get(f"{way}_pinned"), by_name.get(f"{way}_pageable")
    ratio = pinned / pageable if pinned is not None and pageable else None
    return [_number(pinned, ".1f"), _number(pageable, ".1f"), _number(ratio, ".2f")]


def _precisions(checks: Sequence[Mapping[str, Any]]) -> list[Line]:
    rows = []
    for check in checks:
        found = _BENCH.fullmatch(str(check.get("id")))
        observed = mapping(check.get("observed"))
        if not found or not is_number(observed.get("step_ms")):
            continue
        ratio = observed.get("time_ratio_to_fp32")
        peak = observed.get("peak_bytes")
        memory = observed.get("saved_bytes") if peak is None else peak
        rows.append(
            [
                clean(found[1]),
                clean(found[2]),
                _number(observed["step_ms"], ".3g"),
                _number(1 / ratio if is_number(ratio) and ratio else None, ".2f", "x"),
                _number(memory / _MIB if is_number(memory) else None, ".1f"),
                _number(observed.get("loss_rel_err"), ".1e"),
                _number(observed.get("grad_rel_l2"), ".1e"),
            ]
        )
    peaked = any(mapping(check.get("observed")).get("peak_bytes") for check in checks)
    head = ["network", "precision", "ms", "speed-up", "peak MiB" if peaked else "saved MiB", "loss err", "grad err"]
    return table(head, rows, indent=_INDENT, left=2) if rows else []


def _loaders(checks: Sequence[Mapping[str, Any]]) -> list[Line]:
    """One row per workload and kind of loader, one column per number of workers."""
    rates: dict[tuple[str, str, str], dict[int, float]] = {}
    for check in checks:
        if not str(check.get("id")).startswith("C12.throughput."):
            continue
        observed = mapping(check.get("observed"))
        workload = _WORKLOADS.get(str(observed.get("workload")), clean(observed.get("workload")))
        for cell in map(mapping, sequence(observed.get("cells"))):
            workers, rate = cell.get("num_workers"), cell.get("samples_per_s")
            if isinstance(workers, int) and is_number(rate):
                kept = "each epoch" if workers and not cell.get("persistent_workers") else "once"
                pinned = "yes" if cell.get("pin_memory") else "no"
                # Without workers there is nothing to start: that rate belongs to every kind.
                by_count = rates.setdefault((workload, pinned, "once" if not workers else kept), {})
                by_count[workers] = max(rate, by_count.get(workers, rate))
    counts = sorted({count for by_count in rates.values() for count in by_count})
    rows = [
        [*kind, *(_number(by_count.get(count), ".0f") for count in counts)] for kind, by_count in sorted(rates.items())
    ]
    head = ["bound by", "pinned", "workers start", *(f"{count} workers" for count in counts)]
    return table(head, rows, indent=_INDENT, left=3) if rows else []


def _number(value: Any, form: str, unit: str = "") -> str:
    if not is_number(value):
        return "-"
    return f"{int(value) if form == 'd' else value:{form}}{unit}"
