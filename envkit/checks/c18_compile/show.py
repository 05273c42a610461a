"""C18: a function, eager and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, mapping, number
from envkit.checks.sheet import LOWER, Figure, Sheet, Shown, Values, cell, short, tables


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled function: its first call in seconds, later calls and eager ones in milliseconds."""

    first_s: float
    compiled_ms: float | None
    eager_ms: float | None
    speed_up: float | None
    kernels: float | None


def compiled(checks: Sequence[Tree]) -> Compiled | None:
    """Return C18's times, or None if nothing was compiled."""
    for check in checks:
        observed = mapping(check.get("observed"))
        first = number(observed.get("cold_s"))
        if first is not None:
            warm, eager = number(observed.get("warm_ms")), number(observed.get("eager_ms"))
            counts = [count for count in map(number, mapping(observed.get("kernels")).values()) if count is not None]
            gain = eager / warm if eager is not None and warm else None
            return Compiled(first, warm, eager, gain, sum(counts) if counts else None)
    return None


def _sheet(times: Compiled) -> Sheet:
    row = [
        cell(times.eager_ms, ".3g"),
        cell(times.compiled_ms, ".3g"),
        cell(times.speed_up, ".2f", "x"),
        cell(times.first_s, ".1f"),
        cell(times.kernels, ".0f"),
    ]
    return Sheet(
        title="torch.compile, one small function",
        head=("eager, ms", "compiled, ms", "speedup", "first call, s", "kernel files"),
        rows=[row],
        left=0,
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the cost of compiling in the first call and its gain in later ones."""
    times = compiled(checks)
    return Shown(
        ident="compile",
        title="torch.compile",
        sheets=() if times is None else tables(_sheet(times)),
        figures=() if times is None else _figures(times),
        remark="One small function. It shows whether the compiler works, not what a model gains.",
    )


def _figures(times: Compiled) -> tuple[Figure, ...]:
    if times.eager_ms is None or times.compiled_ms is None:
        return ()
    rows = [("eager", times.eager_ms), ("compiled", times.compiled_ms)]
    summary = f"Eager {short(times.eager_ms)} ms, compiled {short(times.compiled_ms)} ms per call."
    return (Values("compile-times", "A call, eager and compiled", summary, rows, unit="ms", better=LOWER),)
