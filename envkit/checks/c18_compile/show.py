"""C18: a function, eager and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, mapping, number
from envkit.checks.shown import LOWER, Figure, Sheet, Shown, Values, cell, short, tables


@dataclass(frozen=True, slots=True)
class Compiled:
    """C18: the first call of a compiled function in seconds, later calls and eager ones in milliseconds."""

    first_s: float
    compiled_ms: float | None
    eager_ms: float | None
    speed_up: float | None
    kernels: float | None


def compiled(checks: Sequence[Tree]) -> Compiled | None:
    """C18's times; None where nothing was compiled."""
    for check in checks:
        observed = mapping(check.get("observed"))
        first = number(observed.get("cold_s"))
        if first is not None:
            warm, eager = number(observed.get("warm_ms")), number(observed.get("eager_ms"))
            counts = [count for count in map(number, mapping(observed.get("kernels")).values()) if count is not None]
            gain = eager / warm if eager is not None and warm else None
            return Compiled(first, warm, eager, gain, sum(counts) if counts else None)
    return None


def _sheet(found: Compiled) -> Sheet:
    row = [
        cell(found.eager_ms, ".3g"),
        cell(found.compiled_ms, ".3g"),
        cell(found.speed_up, ".2f", "x"),
        cell(found.first_s, ".1f"),
        cell(found.kernels, ".0f"),
    ]
    return Sheet(
        title="torch.compile, one small function",
        head=("eager, ms", "compiled, ms", "speedup", "first call, s", "kernel files"),
        rows=[row],
        left=0,
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show what compiling costs at the first call and brings in later ones."""
    found = compiled(checks)
    return Shown(
        ident="compile",
        title="torch.compile",
        sheets=() if found is None else tables(_sheet(found)),
        figures=() if found is None else _figures(found),
        remark="One small function. It shows whether the compiler works, not what a model gains.",
    )


def _figures(found: Compiled) -> tuple[Figure, ...]:
    if found.eager_ms is None or found.compiled_ms is None:
        return ()
    rows = [("eager", found.eager_ms), ("compiled", found.compiled_ms)]
    told = f"Eager {short(found.eager_ms)} ms, compiled {short(found.compiled_ms)} ms a call."
    return (Values("compile-times", "A call, eager and compiled", told, rows, unit="ms", better=LOWER),)
