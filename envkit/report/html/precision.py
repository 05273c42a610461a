"""Mixed precision: time, memory and error of a training step, the rate of a matrix product, memory by batch."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.report.html.barchart import error_chart, ratio_chart
from envkit.report.html.shapes import short
from envkit.report.html.tables import table
from envkit.report.html.topic import Topic, ratio, remark, sheet_table
from envkit.report.lines import fitted
from envkit.report.markup import Markup
from envkit.report.measured import Precision, Product, Saved, precisions, product_rates, saved_ratios
from envkit.report.reading import Tree
from envkit.report.sheets import products_sheet, saved_sheet

_MIB = 1 << 20
# Characters that fit beside a bar.
_ROW_NAME = 17


def precision_topic(checks: Sequence[Tree]) -> Topic:
    """What mixed precision gains and costs here; C14, C15 and C16 each add what they measured."""
    steps, products, saved = precisions(checks), product_rates(checks), saved_ratios(checks)
    tables = [*_steps(steps), *sheet_table(products_sheet(checks)), *sheet_table(saved_sheet(checks))]
    return Topic(
        ident="precision",
        title="Mixed precision against fp32",
        pictures=_pictures(steps, products, saved),
        numbers=tables,
        remark=remark(
            "fp32 means strict IEEE arithmetic. Memory is the peak of a step on a GPU, and what is saved for backward"
            " on a CPU. The gradient's error is relative.",
            noisy=any([*(item.noisy for item in steps), *(item.noisy for item in products)]),
        ),
        absent="C14, C15 and C16 measured no precision but fp32 in this run.",
    )


def _pictures(steps: Sequence[Precision], products: Sequence[Product], saved: Sequence[Saved]) -> tuple[Markup, ...]:
    low = [item for item in steps if item.precision != "fp32"]
    times = [(_name(item), item.time_ratio) for item in low if item.time_ratio is not None]
    held = [(_name(item), item.memory_ratio) for item in low if item.memory_ratio is not None]
    errors = [(_name(item), item.gradient_error) for item in low if item.gradient_error]
    gains = [(fitted(item.precision, _ROW_NAME), item.over_fp32) for item in products if item.over_fp32 is not None]
    grown = [(f"batch {item.batch}", item.ratio) for item in saved]
    fp32 = "fp32"
    drawn = [
        times
        and ratio_chart(
            "amp-time", "Time of a step, fp32 = 1", _told("Below 1 is faster", times), times, reference=fp32
        ),
        held
        and ratio_chart(
            "amp-memory", "Memory of a step, fp32 = 1", _told("Below 1 is less", held), held, reference=fp32
        ),
        errors
        and error_chart("amp-error", "Gradient error against fp32", _told("Relative error", errors, ".1e"), errors),
        gains
        and ratio_chart(
            "amp-gemm", "Rate of a matrix product, fp32 = 1", _told("Above 1 is faster", gains), gains, reference=fp32
        ),
        grown
        and ratio_chart(
            "amp-saved", "Saved for backward by batch, fp32 = 1", _told("Below 1 is less", grown), grown, reference=fp32
        ),
    ]
    return tuple(one for one in drawn if isinstance(one, Markup))


def _steps(found: Sequence[Precision]) -> list[Markup]:
    rows = [
        [
            item.network,
            item.precision,
            short(item.step_ms),
            ratio(item.time_ratio),
            "-" if item.memory_bytes is None else f"{item.memory_bytes / _MIB:.1f}",
            ratio(item.memory_ratio),
            _error(item.loss_error),
            _error(item.gradient_error),
        ]
        for item in found
    ]
    head = ["Network", "Precision", "Step, ms", "Time / fp32", "Memory, MiB", "Memory / fp32", "Loss error"]
    return [table("One training step in each precision", [*head, "Gradient error"], rows, left=2)] if rows else []


def _told(what: str, rows: Sequence[tuple[str, float]], form: str = ".2f") -> str:
    return f"{what}: {', '.join(f'{name} {value:{form}}' for name, value in rows)}."


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _name(item: Precision) -> str:
    return fitted(f"{item.network} {item.precision}", _ROW_NAME)
