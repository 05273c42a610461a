"""C14: time, memory and error of a training step in each precision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, is_number, mapping, number, ratio
from envkit.checks.shown import Errors, Figure, Ratios, Sheet, Shown, cell, short, tables
from envkit.ground.text import clean, fitted

_BENCH = re.compile(r"C14\.bench\.([^.]+)\.([^.]+)")

# Characters that fit beside a bar.
_ROW_NAME = 17

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Precision:
    """One training step of a network in one precision; ratios are to strict float32."""

    network: str
    precision: str
    step_ms: float
    time_ratio: float | None
    memory_bytes: float | None
    memory_ratio: float | None
    gradient_error: float | None
    loss_error: float | None
    noisy: bool
    peak: bool = False  # the memory is the peak of a step, else what is saved for backward


def precisions(checks: Sequence[Tree]) -> list[Precision]:
    """C14's training steps, in the order of the record."""
    memory: dict[tuple[str, str], float] = {}
    rows = []
    for check in checks:
        named, observed = _BENCH.fullmatch(str(check["id"])), mapping(check.get("observed"))
        if named and is_number(observed.get("step_ms")):
            held = observed.get("peak_bytes")
            held = observed.get("saved_bytes") if held is None else held
            if is_number(held):
                memory[named[1], named[2]] = held
            rows.append((named[1], named[2], observed, is_noisy(check)))
    return [
        Precision(
            network=clean(network),
            precision=clean(kind),
            step_ms=observed["step_ms"],
            time_ratio=number(observed.get("time_ratio_to_fp32")),
            memory_bytes=memory.get((network, kind)),
            memory_ratio=ratio(memory.get((network, kind)), memory.get((network, "fp32"))),
            gradient_error=number(observed.get("grad_rel_l2")),
            loss_error=number(observed.get("loss_rel_err")),
            noisy=noisy,
            peak=number(observed.get("peak_bytes")) is not None,
        )
        for network, kind, observed, noisy in rows
    ]


def _told(what: str, rows: Sequence[tuple[str, float]], form: str = ".2f") -> str:
    return f"{what}: {', '.join(f'{name} {value:{form}}' for name, value in rows)}."


def _name(item: Precision) -> str:
    return fitted(f"{item.network} {item.precision}", _ROW_NAME)


def _details(found: Sequence[Precision]) -> Sheet:
    rows = [
        [
            item.network,
            item.precision,
            short(item.step_ms),
            cell(item.time_ratio, ".2f"),
            "-" if item.memory_bytes is None else f"{item.memory_bytes / _MIB:.1f}",
            cell(item.memory_ratio, ".2f"),
            cell(item.loss_error, ".1e"),
            cell(item.gradient_error, ".1e"),
        ]
        for item in found
    ]
    head = ("Network", "Precision", "Step, ms", "Time / fp32", "Memory, MiB", "Memory / fp32", "Loss error")
    return Sheet("One training step in each precision", (*head, "Gradient error"), rows, left=2)


def _figures(steps: Sequence[Precision]) -> tuple[Figure, ...]:
    low = [item for item in steps if item.precision != "fp32"]
    times = [(_name(item), item.time_ratio) for item in low if item.time_ratio is not None]
    held = [(_name(item), item.memory_ratio) for item in low if item.memory_ratio is not None]
    errors = [(_name(item), item.gradient_error) for item in low if item.gradient_error]
    drawn: tuple[Ratios | Errors, ...] = (
        Ratios("amp-time", "Time of a step, fp32 = 1", _told("Below 1 is faster", times), times, "fp32"),
        Ratios("amp-memory", "Memory of a step, fp32 = 1", _told("Below 1 is less", held), held, "fp32"),
        Errors("amp-error", "Gradient error against fp32", _told("Relative error", errors, ".1e"), errors),
    )
    return tuple(figure for figure in drawn if figure.rows)


def _sheet(found: Sequence[Precision]) -> Sheet:
    memory = "peak MiB" if any(item.peak for item in found) else "saved MiB"
    rows = [
        [
            item.network,
            item.precision,
            cell(item.step_ms, ".3g"),
            cell(1 / item.time_ratio if item.time_ratio else None, ".2f", "x"),
            cell(None if item.memory_bytes is None else item.memory_bytes / _MIB, ".1f"),
            cell(item.loss_error, ".1e"),
            cell(item.gradient_error, ".1e"),
        ]
        for item in found
    ]
    return Sheet(
        title="Mixed precision, one training step",
        head=("network", "precision", "ms", "speedup", memory, "loss err", "grad err"),
        rows=rows,
        left=2,
        noisy=any(item.noisy for item in found),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show what mixed precision gains and costs in a training step."""
    found = precisions(checks)
    return Shown(
        ident="precision",
        title="Mixed precision against fp32",
        sheets=tables(_sheet(found)),
        figures=_figures(found),
        details=tables(_details(found)),
        remark="fp32 means strict IEEE arithmetic. Memory is the peak of a step on a GPU, and what is saved for"
        " backward on a CPU. The gradient's error is relative.",
    )
