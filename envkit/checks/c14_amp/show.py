"""C14: time, memory and error of a training step in each precision."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, is_number, mapping, number, ratio
from envkit.checks.sheet import HIGHER, LOWER, Errors, Figure, Ratios, Sheet, Shown, Tile, cell, fill_of, short, tables
from envkit.ground.text import clean, fitted

_BENCH = re.compile(r"C14\.bench\.([^.]+)\.([^.]+)")  # C14.bench.cnn.fp16

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
    peak: bool = False  # whether the memory is the peak of a step; else it is what is saved for backward


def precisions(checks: Sequence[Tree]) -> list[Precision]:
    """Return C14's training steps, in the order of the record."""
    # Collected first: the ratios need fp32's memory, and a record does not guarantee an order.
    memory: dict[tuple[str, str], float] = {}
    rows = []
    for check in checks:
        match, observed = _BENCH.fullmatch(str(check["id"])), mapping(check.get("observed"))
        if match and is_number(observed.get("step_ms")):
            size = observed.get("peak_bytes")
            size = observed.get("saved_bytes") if size is None else size
            if is_number(size):
                memory[match[1], match[2]] = size
            rows.append((match[1], match[2], observed, is_noisy(check)))
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


def _summary(what: str, rows: Sequence[tuple[str, float]], form: str = ".2f") -> str:
    return f"{what}: {', '.join(f'{name} {value:{form}}' for name, value in rows)}."


def _name(item: Precision) -> str:
    return fitted(f"{item.network} {item.precision}", _ROW_NAME)


def _details(steps: Sequence[Precision]) -> Sheet:
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
        for item in steps
    ]
    head = ("Network", "Precision", "Step, ms", "Time / fp32", "Memory, MiB", "Memory / fp32", "Loss error")
    return Sheet("One training step in each precision", (*head, "Gradient error"), rows, left=2)


def _figures(steps: Sequence[Precision]) -> tuple[Figure, ...]:
    low = [item for item in steps if item.precision != "fp32"]
    speeds, fast = _rows(low, lambda item: 1 / item.time_ratio if item.time_ratio else None)
    memory, small = _rows(low, lambda item: item.memory_ratio)
    errors, wrong = _rows(low, lambda item: item.gradient_error or None)
    summaries = (
        _summary("Above 1 is faster", speeds),
        _summary("Below 1 is less", memory),
        _summary("Relative error", errors, ".1e"),
    )
    drawn: tuple[Ratios | Errors, ...] = (
        Ratios("amp-time", "Speed of a step, fp32 = 1", summaries[0], speeds, "fp32", fast, better=HIGHER),
        Ratios("amp-memory", "Memory of a step, fp32 = 1", summaries[1], memory, "fp32", small, better=LOWER),
        Errors("amp-error", "Gradient error against fp32", summaries[2], errors, wrong, better=LOWER),
    )
    return tuple(figure for figure in drawn if figure.rows)


def _rows(
    steps: Sequence[Precision], value: Callable[[Precision], float | None]
) -> tuple[list[tuple[str, float]], list[str]]:
    """Return the rows of a figure, and the fill of each."""
    known = [(item, number) for item in steps if (number := value(item)) is not None]
    return [(_name(item), number) for item, number in known], [fill_of(item.precision) for item, _ in known]


def _tiles(steps: Sequence[Precision]) -> tuple[Tile, ...]:
    """Return the speedup of mixed precision over all networks: in bfloat16, or in float16 if that is missing."""
    for kind in ("bf16", "fp16"):
        gains = [1 / item.time_ratio for item in steps if item.precision == kind and item.time_ratio]
        if gains:
            least, most = f"{min(gains):.1f}", f"{max(gains):.1f}"
            value = f"{least}x" if least == most else f"{least} to {most}x"
            return (Tile("AMP speedup", value, f"a training step in {kind} against fp32", HIGHER),)
    return ()


def _sheet(steps: Sequence[Precision]) -> Sheet:
    memory = "peak MiB" if any(item.peak for item in steps) else "saved MiB"
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
        for item in steps
    ]
    return Sheet(
        title="Mixed precision, one training step",
        head=("network", "precision", "ms", "speedup", memory, "loss err", "grad err"),
        rows=rows,
        left=2,
        noisy=any(item.noisy for item in steps),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show what mixed precision gains and costs in a training step."""
    steps = precisions(checks)
    return Shown(
        ident="precision",
        title="Mixed precision against fp32",
        sheets=tables(_sheet(steps)),
        figures=_figures(steps),
        tiles=_tiles(steps),
        details=tables(_details(steps)),
        remark="fp32 means strict IEEE arithmetic. Memory is the peak of a step on a GPU, and the memory saved for"
        " backward on a CPU. The gradient error is relative.",
    )
