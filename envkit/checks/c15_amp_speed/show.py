"""C15: the rate of a matrix product in each precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, mapping, number
from envkit.checks.sheet import HIGHER, Sheet, Shown, Tile, Values, cell, fill_of, short, tables
from envkit.ground.text import clean, fitted

# Characters that fit beside a bar.
_ROW_NAME = 17


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product in one precision: its rate in TFLOP/s and its speedup over strict float32.

    `floor` is the rate below which the check fails, `peak` the GPU's limit in half precision, both in TFLOP/s.
    """

    precision: str
    tflops: float | None
    over_fp32: float | None
    noisy: bool
    floor: float | None = None
    peak: float | None = None
    on_gpu: bool = False


def product_rates(checks: Sequence[Tree]) -> list[Product]:
    """Return C15's matrix products, strict float32 first."""
    products, strict = [], None
    for check in checks:
        observed = mapping(check.get("observed"))
        rate, gain = number(observed.get("tflops")), number(observed.get("over_fp32"))
        if rate is not None:
            strict = number(observed.get("tflops_fp32")) or strict
            products.append(
                Product(
                    clean(observed.get("precision")),
                    rate,
                    gain,
                    is_noisy(check),
                    _floor(mapping(check.get("rule")), strict),
                    number(mapping(check.get("derived")).get("limit_tflops")),
                    str(check.get("subject")).startswith("gpu"),
                )
            )
    return [Product("fp32", strict, None, noisy=False), *products] if products else []


def _floor(rule: Tree, strict: float | None) -> float | None:
    """Return the rate required by a rule on the speedup over strict float32, or None if the rule only informs."""
    least = number(rule.get("fail_below")) if rule.get("type") == "min_ratio" and rule.get("gates") else None
    return least * strict if least is not None and strict is not None else None


def _figure(products: Sequence[Product]) -> Values:
    known = [(item, item.tflops) for item in products if item.tflops is not None]
    peak = max((item.peak for item in products if item.peak), default=None)
    rows = [(fitted(item.precision, _ROW_NAME), rate) for item, rate in known]
    floors = [
        (index, f"{item.precision} fails below {short(item.floor)}", item.floor)
        for index, (item, _) in enumerate(known)
        if item.floor
    ]
    summary = ", ".join(f"{name} {short(rate)}" for name, rate in rows)
    against = f"; the GPU's peak in half precision is {short(peak)}" if peak else ""
    return Values(
        "amp-gemm",
        "Rate of a matrix product",
        f"TFLOP/s: {summary}{against}.",
        rows,
        "TFLOP/s",
        fills=[fill_of(item.precision) for item, _ in known],
        floors=floors,
        limits=[(f"the GPU's peak {short(peak)}", peak)] if peak else [],
        better=HIGHER,
    )


def _tiles(products: Sequence[Product]) -> tuple[Tile, ...]:
    """Return the fastest product on a GPU, compared with the GPU's peak or else with strict float32."""
    rates = [(item, item.tflops) for item in products if item.on_gpu and item.tflops is not None]
    if not rates:
        return ()
    best, rate = max(rates, key=lambda pair: pair[1])
    note = f"{best.precision} products"
    if best.peak:
        note = f"{best.precision} products, {rate / best.peak:.0%} of the GPU's peak {short(best.peak)}"
    elif best.over_fp32:
        note = f"{best.precision} products, {best.over_fp32:.1f}x strict fp32"
    return (Tile("Matrix products", f"{short(rate)} TFLOP/s", note, HIGHER),)


def _sheet(products: Sequence[Product]) -> Sheet:
    return Sheet(
        title="Matrix products",
        head=("precision", "TFLOP/s", "times fp32"),
        rows=[[item.precision, cell(item.tflops, ".3g"), cell(item.over_fp32, ".2f", "x")] for item in products],
        noisy=any(item.noisy for item in products),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the rate of a matrix product in each precision, compared with strict fp32."""
    products = product_rates(checks)
    return Shown(
        ident="products",
        title="Matrix products",
        sheets=tables(_sheet(products)),
        figures=(_figure(products),) if products else (),
        remark="fp32 means strict IEEE arithmetic. The peak is what the clock and the multiprocessors of this GPU allow"
        " in half precision.",
        tiles=_tiles(products),
    )
