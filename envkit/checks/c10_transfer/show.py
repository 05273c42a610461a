"""C10: bandwidth of both directions by size, from page-locked and from pageable memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from envkit.checks.reading import Tree, is_noisy, is_number, mapping
from envkit.checks.shown import HIGHER, Lines, Sheet, Shown, Tile, cell, short, tables

_COPY = re.compile(r"C10\.(h2d|d2h)_(pinned|pageable)_(\d+)MiB")

_WAYS = {"h2d": "Host to device", "d2h": "Device to host"}


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bandwidth of one direction in GB/s (1e9 bytes) by size in MiB; `limit` is the link's, where it is known."""

    way: str  # 'h2d' | 'd2h'
    pinned: dict[int, float] = field(default_factory=dict)
    pageable: dict[int, float] = field(default_factory=dict)
    limit: float | None = None
    floor: float | None = None  # GB/s; below it the check fails
    floor_at: int | None = None  # MiB; the one size of pinned memory that the floor holds for
    noisy: bool = False


def transfers(checks: Sequence[Tree]) -> list[Transfer]:
    """C10's copies, host to device first."""
    measured: list[Transfer] = []
    for direction in ("h2d", "d2h"):
        rates: dict[str, dict[int, float]] = {"pinned": {}, "pageable": {}}
        limit = floor = floor_at = None
        noisy = False
        for check in checks:
            named = _COPY.fullmatch(str(check["id"]))
            rate = mapping(check.get("observed")).get("gb_per_s")
            if not named or named[1] != direction or not is_number(rate):
                continue
            rates[named[2]][int(named[3])] = rate
            noisy = noisy or is_noisy(check)
            carried, share = mapping(check.get("derived")).get("limit"), mapping(check.get("rule")).get("fail_below")
            limit = carried if is_number(carried) else limit
            if is_number(carried) and is_number(share):
                floor, floor_at = share * carried, int(named[3])
        if rates["pinned"] or rates["pageable"]:
            measured.append(
                Transfer(direction, _sorted(rates["pinned"]), _sorted(rates["pageable"]), limit, floor, floor_at, noisy)
            )
    return measured


def _sorted(rates: dict[int, float]) -> dict[int, float]:
    return dict(sorted(rates.items()))


def _figure(item: Transfer) -> Lines:
    sizes = sorted({*item.pinned, *item.pageable})
    limits = [(f"limit of the link {short(item.limit)}", item.limit)] if item.limit else []
    floors = []
    if item.floor is not None and item.floor_at is not None:
        floors = [(f"{item.floor_at} MiB: fails below {short(item.floor)}", item.floor_at, item.floor)]
    named = (("pinned", item.pinned), ("pageable", item.pageable))
    best = "; ".join(f"{name} up to {short(max(points.values()))} GB/s" for name, points in named if points)
    against = f", against a link that carries {short(item.limit)} GB/s" if item.limit else ""
    return Lines(
        ident=f"bandwidth-{item.way}",
        title=f"{_WAYS[item.way]}: bandwidth by size",
        told=f"{_WAYS[item.way]}: {best}{against}.",
        steps=sizes,
        across="size of the copy, MiB",
        up=f"{_WAYS[item.way]}, GB/s",
        series=[(name, points) for name, points in named if points],
        limits=limits,
        floors=floors,
        better=HIGHER,
    )


def _tiles(measured: Sequence[Transfer]) -> tuple[Tile, ...]:
    """Return the fastest copy from pinned memory in each direction that was measured."""
    pinned = [(item, max(item.pinned.values())) for item in measured if item.pinned]
    return tuple(
        Tile(
            _WAYS[item.way],
            f"{short(rate)} GB/s",
            f"{rate / item.limit:.0%} of the link's {short(item.limit)} GB/s" if item.limit else "pinned memory",
            HIGHER,
        )
        for item, rate in pinned
    )


def _share(item: Transfer, size: int) -> str:
    rate = item.pinned.get(size)
    return f"{rate / item.limit:.0%}" if rate is not None and item.limit else "-"


def _sheet(measured: Sequence[Transfer]) -> Sheet:
    by_direction = {item.way: item for item in measured}
    sizes = sorted({size for item in by_direction.values() for size in (*item.pinned, *item.pageable)})
    limit = max((item.limit for item in by_direction.values() if item.limit), default=None)
    return Sheet(
        title="Copies with pinned and pageable memory, GB/s",
        head=("size", "H2D pinned", "pageable", "ratio", "D2H pinned", "pageable", "ratio"),
        rows=[
            [
                f"{size} MiB",
                *(text for direction in ("h2d", "d2h") for text in _pair(by_direction.get(direction), size)),
            ]
            for size in sizes
        ],
        notes=() if limit is None else (f"PCIe link limit: {limit:.1f} GB/s in each direction.",),
        noisy=any(item.noisy for item in by_direction.values()),
    )


def _pair(item: Transfer | None, size: int) -> list[str]:
    pinned, pageable = (None, None) if item is None else (item.pinned.get(size), item.pageable.get(size))
    gain = pinned / pageable if pinned is not None and pageable else None
    return [cell(pinned, ".1f"), cell(pageable, ".1f"), cell(gain, ".2f")]


def show(checks: Sequence[Tree]) -> Shown:
    """Show bandwidth by size, with the limit of the link and the line where the check fails."""
    measured = transfers(checks)
    return Shown(
        ident="bandwidth",
        title="Bandwidth between host and GPU",
        sheets=tables(_sheet(measured)),
        figures=tuple(_figure(item) for item in measured),
        tiles=_tiles(measured),
        details=tables(_details(measured)),
        remark="Page-locked (pinned) memory is copied by the GPU itself; pageable memory goes through a staging buffer."
        " The red mark holds for pinned copies of that size alone; nothing else can fail.",
    )


def _details(measured: Sequence[Transfer]) -> Sheet:
    rows = [
        [
            _WAYS[item.way],
            f"{size} MiB",
            cell(item.pinned.get(size), ".2f"),
            cell(item.pageable.get(size), ".2f"),
            _share(item, size),
        ]
        for item in measured
        for size in sorted({*item.pinned, *item.pageable})
    ]
    head = ("Direction", "Size", "Pinned, GB/s", "Pageable, GB/s", "Pinned, share of the limit")
    return Sheet("Bandwidth by direction, size and kind of host memory", head, rows, left=2)
