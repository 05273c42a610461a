"""C15: the rate of a matrix product in each precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, mapping, number
from envkit.checks.shown import Ratios, Sheet, Shown, cell, tables
from envkit.ground.text import clean, fitted

# Characters that fit beside a bar.
_ROW_NAME = 17


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product in one precision: its rate in TFLOP/s and over strict float32."""

    precision: str
    tflops: float | None
    over_fp32: float | None
    noisy: bool


def product_rates(checks: Sequence[Tree]) -> list[Product]:
    """C15's matrix products, strict float32 first."""
    found, strict = [], None
    for check in checks:
        observed = mapping(check.get("observed"))
        rate, gain = number(observed.get("tflops")), number(observed.get("over_fp32"))
        if rate is not None:
            strict = number(observed.get("tflops_fp32")) or strict
            found.append(Product(clean(observed.get("precision")), rate, gain, is_noisy(check)))
    return [Product("fp32", strict, None, noisy=False), *found] if found else []


def _sheet(found: Sequence[Product]) -> Sheet:
    return Sheet(
        title="Matrix products",
        head=("precision", "TFLOP/s", "times fp32"),
        rows=[[item.precision, cell(item.tflops, ".3g"), cell(item.over_fp32, ".2f", "x")] for item in found],
        noisy=any(item.noisy for item in found),
    )


def show(checks: Sequence[Tree]) -> Shown:
    """Show the rate of a matrix product in each precision, against strict fp32."""
    found = product_rates(checks)
    gains = [(fitted(item.precision, _ROW_NAME), item.over_fp32) for item in found if item.over_fp32 is not None]
    told = f"Above 1 is faster: {', '.join(f'{name} {value:.2f}' for name, value in gains)}."
    return Shown(
        ident="products",
        title="Matrix products",
        sheets=tables(_sheet(found)),
        figures=(Ratios("amp-gemm", "Rate of a matrix product, fp32 = 1", told, gains, "fp32"),) if gains else (),
        remark="fp32 means strict IEEE arithmetic.",
    )
