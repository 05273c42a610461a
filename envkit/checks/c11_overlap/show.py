"""C11: a copy and kernels, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, mapping, number
from envkit.checks.sheet import LOWER, Sheet, Shown, Values, cell, short, tables

_SHARES = {
    "pinned": "pinned memory, two streams",
    "same_stream": "pinned memory, one stream",
    "pageable": "pageable memory, two streams",
}
MOST = 1.1
"""The most that a share can be: no more than the whole of the shorter one, and a tenth for noise. Above it the copy
alone took longer than both together, so its time varied too much."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The times of a copy, of kernels and of both; the share of the shorter one that is hidden behind the other."""

    copy_ms: float
    kernels_ms: float
    both_ms: float
    one_stream_ms: float | None
    shares: tuple[tuple[str, float], ...]  # ('pinned' | 'same_stream' | 'pageable', share)
    noisy: bool


def overlap(checks: Sequence[Tree]) -> Overlap | None:
    """Return C11's times, or None if they were not measured."""
    for check in checks:
        observed = mapping(check.get("observed"))
        times, shares = mapping(observed.get("times_ms")), mapping(observed.get("overlap"))
        copy, kernels, both = (number(times.get(name)) for name in ("copy", "compute", "both"))
        if copy is not None and kernels is not None and both is not None:
            measured = ((name, number(shares.get(name))) for name in ("pinned", "same_stream", "pageable"))
            known = tuple((name, share) for name, share in measured if share is not None)
            return Overlap(copy, kernels, both, number(times.get("same_stream")), known, is_noisy(check))
    return None


def _sheet(times: Overlap) -> Sheet:
    note = (
        f"The copy takes {times.copy_ms:.3g} ms alone, the kernels {times.kernels_ms:.3g} ms, both together"
        f" {times.both_ms:.3g} ms."
    )
    return Sheet(
        title="Copy/compute overlap",
        head=("copy from", "overlap, share of the shorter"),
        # Adding 0.0 turns a rounded -0.0 into 0.0.
        rows=[
            [_SHARES[name], cell(round(share, 2) + 0.0, ".0%") if share <= MOST else "unclear: the copy's time varied"]
            for name, share in times.shares
        ],
        notes=(note,),
        noisy=times.noisy,
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the times of a copy and of kernels, and the share of the shorter one that is hidden behind the other."""
    times = overlap(checks)
    return Shown(
        ident="overlap",
        title="Copy/compute overlap",
        sheets=() if times is None else tables(_sheet(times)),
        figures=() if times is None else (_figure(times),),
        remark="If the GPU can copy and compute at once, a copy from pinned memory on its own stream takes no extra"
        " time.",
    )


def _figure(times: Overlap) -> Values:
    rows = [("copy", times.copy_ms), ("kernels", times.kernels_ms), ("on two streams", times.both_ms)]
    rows += [] if times.one_stream_ms is None else [("on one stream", times.one_stream_ms)]
    summary = f"{', '.join(f'{name} {short(took)} ms' for name, took in rows)}."
    return Values("overlap-times", "A copy and kernels, alone and together", summary, rows, unit="ms", better=LOWER)
