"""C20: all-reduces, gradients and bandwidth of each backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, mapping, number
from envkit.checks.sheet import Sheet, Shown, cell, tables
from envkit.ground.text import clean


@dataclass(frozen=True, slots=True)
class Group:
    """Processes joined by one backend. Bandwidth is in GB/s, if it was measured."""

    backend: str
    ranks: int
    wrong: float | None  # elements of all-reduces
    difference: float | None  # of DDP's gradient, relative
    algorithm: float | None
    bus: float | None
    noisy: bool


def process_groups(checks: Sequence[Tree]) -> list[Group]:
    """Return C20's groups, one per backend. A group that gave no answer is left out."""
    merged: dict[str, dict[str, Tree]] = {}
    noisy = set()
    for check in checks:
        observed = mapping(check.get("observed"))
        part, _, backend = str(check["id"]).partition(".")[2].partition(".")
        if number(observed.get("ranks")) is not None and observed.get("outcome", "answered") == "answered":
            merged.setdefault(backend, {})[part] = observed
            noisy |= {backend} if is_noisy(check) else set()
    return [_group(backend, parts, noisy=backend in noisy) for backend, parts in merged.items()]


def _group(backend: str, parts: dict[str, Tree], *, noisy: bool) -> Group:
    sums, shared, rates = (mapping(parts.get(part)) for part in ("allreduce", "ddp", "bandwidth"))
    counts = [number(count) for count in mapping(sums.get("wrong")).values()]
    known = [count for count in counts if count is not None]
    ranks = max(int(number(observed.get("ranks")) or 0) for observed in parts.values())
    return Group(
        backend=clean(backend),
        ranks=ranks,
        wrong=sum(known) if known else None,
        difference=number(shared.get("difference")),
        algorithm=number(rates.get("algbw_gb_per_s")),
        bus=number(rates.get("busbw_gb_per_s")),
        noisy=noisy,
    )


def _sheet(groups: Sequence[Group]) -> Sheet:
    timed = any(item.bus is not None for item in groups)
    rows = [
        [
            item.backend,
            str(item.ranks),
            cell(item.wrong, ".0f"),
            cell(item.difference, ".1e"),
            *([cell(item.algorithm, ".1f"), cell(item.bus, ".1f")] if timed else []),
        ]
        for item in groups
    ]
    rates = ("all-reduce GB/s", "bus GB/s") if timed else ()
    return Sheet(
        title="Collectives",
        head=("backend", "processes", "wrong sums", "DDP gradient err", *rates),
        rows=rows,
        noisy=any(item.noisy for item in groups),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show whether all-reduces and gradients are right, and how fast all-reduces between GPUs are."""
    return Shown(
        ident="collectives",
        title="Collectives",
        sheets=tables(_sheet(process_groups(checks))),
        remark="Bus bandwidth is the rate of each link, 2 (n - 1) / n times the all-reduce rate. It needs two GPUs.",
    )
