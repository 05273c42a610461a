"""C10: bandwidth by direction and size, from page-locked and from pageable memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from envkit.checks.reading import Tree, is_noisy, is_number, mapping
from envkit.checks.sheet import HIGHER, Lines, Sheet, Shown, Tile, cell, short, tables

_COPY = re.compile(r"C10\.(h2d|d2h)_(pinned|pageable)_(\d+)MiB")  # C10.h2d_pinned_256MiB

_DIRECTIONS = {"h2d": "Host to device", "d2h": "Device to host"}


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bandwidth of one direction in GB/s (1e9 bytes) by size in MiB; `limit` is that of the link, if known."""

    direction: str  # 'h2d' | 'd2h'
    pinned: dict[int, float] = field(default_factory=dict)
    pageable: dict[int, float] = field(default_factory=dict)
    limit: float | None = None
    floor: float | None = None  # GB/s; below it the check fails
    floor_at: int | None = None  # MiB; the one size of pinned copies to which the floor applies
    noisy: bool = False


def transfers(checks: Sequence[Tree]) -> list[Transfer]:
    """Return the bandwidth of C10's copies, host to device first."""
    measured: list[Transfer] = []
    for direction in ("h2d", "d2h"):
        rates: dict[str, dict[int, float]] = {"pinned": {}, "pageable": {}}
        limit = floor = floor_at = None
        noisy = False
        for check in checks:
            match = _COPY.fullmatch(str(check["id"]))
            rate = mapping(check.get("observed")).get("gb_per_s")
            if not match or match[1] != direction or not is_number(rate):
                continue
            rates[match[2]][int(match[3])] = rate
            noisy = noisy or is_noisy(check)
            carried, share = mapping(check.get("derived")).get("limit"), mapping(check.get("rule")).get("fail_below")
            limit = carried if is_number(carried) else limit
            # Only the deciding copy has a floor; the other sizes have a rule without `fail_below`.
            if is_number(carried) and is_number(share):
                floor, floor_at = share * carried, int(match[3])
        if rates["pinned"] or rates["pageable"]:
            measured.append(
                Transfer(direction, _sorted(rates["pinned"]), _sorted(rates["pageable"]), limit, floor, floor_at, noisy)
            )
    return measured


def _sorted(rates: dict[int, float]) -> dict[int, float]:
    return dict(sorted(rates.items()))


def _figure(item: Transfer) -> Lines:
    sizes = sorted({*item.pinned, *item.pageable})
    limits = [(f"link limit {short(item.limit)}", item.limit)] if item.limit else []
    floors = []
    if item.floor is not None and item.floor_at is not None:
        floors = [(f"{item.floor_at} MiB: fails below {short(item.floor)}", item.floor_at, item.floor)]
    named = (("pinned", item.pinned), ("pageable", item.pageable))
    best = "; ".join(f"{name} up to {short(max(points.values()))} GB/s" for name, points in named if points)
    against = f"; the link limit is {short(item.limit)} GB/s" if item.limit else ""
    return Lines(
        ident=f"bandwidth-{item.direction}",
        title=f"{_DIRECTIONS[item.direction]}: bandwidth by size",
        summary=f"{_DIRECTIONS[item.direction]}: {best}{against}.",
        steps=sizes,
        x_label="size of the copy, MiB",
        y_label=f"{_DIRECTIONS[item.direction]}, GB/s",
        series=[(name, points) for name, points in named if points],
        limits=limits,
        floors=floors,
        better=HIGHER,
    )


def _tiles(measured: Sequence[Transfer]) -> tuple[Tile, ...]:
    """Return the largest copy with pinned memory in each direction that was measured: the one that is judged."""
    pinned = [(item, item.pinned[max(item.pinned)]) for item in measured if item.pinned]
    return tuple(
        Tile(
            _DIRECTIONS[item.direction],
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
    by_direction = {item.direction: item for item in measured}
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
    """Show bandwidth by size, with the limit of the link and the floor below which the check fails."""
    measured = transfers(checks)
    return Shown(
        ident="bandwidth",
        title="Bandwidth between host and GPU",
        sheets=tables(_sheet(measured)),
        figures=tuple(_figure(item) for item in measured),
        tiles=_tiles(measured),
        details=tables(_details(measured)),
        remark="Page-locked (pinned) memory is copied by the GPU itself; pageable memory goes through a staging buffer."
        " The red mark is the floor for pinned copies of that size; no other copy can fail.",
    )


def _details(measured: Sequence[Transfer]) -> Sheet:
    rows = [
        [
            _DIRECTIONS[item.direction],
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
