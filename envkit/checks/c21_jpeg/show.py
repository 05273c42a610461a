"""C21: images per second of each JPEG decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from envkit.checks.reading import Tree, is_noisy, mapping, number, sequence
from envkit.checks.sheet import HIGHER, Sheet, Shown, Values, cell, short, tables
from envkit.ground.text import clean, fitted

# Characters that fit beside a bar.
_ROW_NAME = 15


@dataclass(frozen=True, slots=True)
class Decoding:
    """Images per second of each JPEG decoder at one size on one thread, and how far its pixels are from Pillow's."""

    width: float
    height: float
    rates: tuple[tuple[str, float], ...]
    differences: dict[str, float]  # levels of 256
    decode_share: float | None  # of the time to prepare an image with Pillow
    noisy: bool
    absent: tuple[str, ...] = ()  # not installed in the image
    batches: dict[str, float] = field(default_factory=dict)  # images that a decoder takes at once
    advice: tuple[str, ...] = ()  # only of a PASS; other advice is shown with the checks


def decodings(checks: Sequence[Tree]) -> list[Decoding]:
    """Return C21's image sizes, in the order of the record."""
    measured = []
    for check in checks:
        observed = mapping(check.get("observed"))
        times = {clean(name): number(took) for name, took in mapping(observed.get("decode_ms")).items()}
        rates = tuple((name, 1e3 / took) for name, took in times.items() if took)
        levels_by_name = mapping(observed.get("largest_difference")).items()
        differences = {clean(name): value for name, levels in levels_by_name if (value := number(levels)) is not None}
        width, height = number(observed.get("width")), number(observed.get("height"))
        if rates and width is not None and height is not None:
            share, absent = number(observed.get("decode_share")), tuple(map(clean, sequence(observed.get("absent"))))
            advice = tuple(map(clean, sequence(check.get("advice")))) if check.get("verdict") == "PASS" else ()
            sizes = mapping(observed.get("batches")).items()
            batches = {clean(name): value for name, size in sizes if (value := number(size)) is not None}
            measured.append(
                Decoding(width, height, rates, differences, share, is_noisy(check), absent, batches, advice)
            )
    return measured


def _figure(index: int, item: Decoding) -> Values:
    size = f"{item.width:.0f} x {item.height:.0f}"
    rows = [(fitted(name, _ROW_NAME), rate) for name, rate in item.rates]
    summary = f"{', '.join(f'{name} {short(rate)}' for name, rate in rows)} images per second."
    return Values(f"decoders-{index}", f"Decoding JPEG, {size}", summary, rows, unit="images per second", better=HIGHER)


def _sheet(measured: Sequence[Decoding]) -> Sheet:
    names = list(dict.fromkeys(name for item in measured for name, _ in item.rates))
    rates = [dict(item.rates) for item in measured]
    rows = [
        [
            name,
            *(cell(by_name.get(name), ".0f") for by_name in rates),
            cell(max((item.differences[name] for item in measured if name in item.differences), default=None), ".0f"),
        ]
        for name in names
    ]
    shares = ", ".join(
        f"{item.decode_share:.0%} at {item.width:.0f} x {item.height:.0f}"
        for item in measured
        if item.decode_share is not None
    )
    notes = [f"Decoding with Pillow takes {shares} of preparing an image; the rest is scaling and normalizing."]
    absent = dict.fromkeys(name for item in measured for name in item.absent)
    batches = {name: size for item in measured for name, size in item.batches.items() if size > 1}
    notes = notes if shares else []
    notes += [f"{name} decodes batches of {size:.0f} on the GPU." for name, size in batches.items()]
    missing = [f"Not installed: {', '.join(absent)}."] if absent else []
    return Sheet(
        title="JPEG decoders, images per second on one thread",
        head=("decoder", *(f"{item.width:.0f} x {item.height:.0f}" for item in measured), "max difference"),
        rows=rows,
        notes=(*notes, *missing),
        advice=tuple(f"{item.width:.0f} x {item.height:.0f}: {line}" for item in measured for line in item.advice),
        noisy=any(item.noisy for item in measured),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the rate of each decoder at each size, and how far its pixels are from Pillow's."""
    measured = decodings(checks)
    return Shown(
        ident="decoders",
        title="JPEG decoders",
        sheets=tables(_sheet(measured)),
        figures=tuple(_figure(index, item) for index, item in enumerate(measured)),
        remark="Single-threaded. The last column is the largest pixel difference from Pillow (0 to 255).",
    )
