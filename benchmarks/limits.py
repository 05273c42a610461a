"""Every number that can fail an image or a machine: its reason, what healthy machines reach, and a planted fault.

    python -m benchmarks.limits [--measure [SEEDS]]

The first table has the margins of each `check.yaml`: by what factor a limit is above (for a floor: below) the worst
healthy machine, and the fault above the limit. The second estimates how often a healthy machine fails at each limit,
from the seeds and runs that were recorded on an H200 (`_limit_seeds.json`, and the recorded runs of the tests).
`--measure` computes errors and plants faults on this machine's CPU, which needs torch (`_limit_faults.py`).

The payload always takes the same seeds, so on one GPU with one library most of these numbers are the same in each run.
The spread over seeds stands for that over GPUs and libraries:

* a loss is off by a sum of many rounding errors, so its error is normal around 0, and its size half-normal;
* gradients and whole products have the norm of many errors, so they are normal around their median;
* the drop of a loss over ten steps is positive and skewed, so its logarithm is normal;
* the largest of N normal errors is above a line as often as any of them is, at most;
* rates are normal around their mean.

A standard deviation from n values is taken at the upper end of its 95 % confidence interval. What is bit-equal by
design, or computed from fixed numbers, cannot fail by chance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

from benchmarks._report import Figure, finish, tell
from envkit.checks import thresholds
from envkit.checks.thresholds import Margin, Threshold

SEEDS = Path(__file__).with_name("_limit_seeds.json")
RUNS = Path(__file__).parents[1] / "tests" / "machines" / "recordings" / "payload" / "h200.jsonl"
GOAL = 1e-4  # of healthy machines may fail at one limit
# sqrt((n - 1) / chi2) at 5 % and n - 1 degrees of freedom: the upper end of a standard deviation's interval.
_UPPER = {3: 4.42, 4: 2.92, 5: 2.37, 6: 2.09, 8: 1.80, 10: 1.65, 20: 1.37}
# The expected range of n normal values in standard deviations.
_RANGE = {3: 1.69, 10: 3.08, 20: 3.73}
_ELEMENTS = 1 << 20  # of the largest product; fewer have smaller largest errors
_SEEDS_PER_RUN = 3  # of C14, whose worst one counts
_SURE = "fixed by design"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How often a healthy machine fails at one limit, and what that follows from."""

    limit: str
    fails: float
    basis: str


def margins() -> Iterator[tuple[Threshold, Margin]]:
    """Yield every margin with its row."""
    for row in thresholds.shipped().rows.values():
        for margin in row.margins.values():
            yield row, margin


def table() -> list[tuple[str, ...]]:
    """Return the table of margins, and of the rows that can fail something and lack one."""
    lines: list[tuple[str, ...]] = [
        ("limit", "value", "healthy", "room", "fault", "room", "what the fault is; the reason")
    ]
    for row, margin in margins():
        limit = row.number(margin.key)
        above, below = margin.room(limit)
        healthy = " ".join(f"{name} {value:.3g}" for name, value in margin.healthy.items())
        name = f"{row.name}.{margin.key}"
        why = f"{margin.fault}; {margin.reason}"
        lines.append((name, f"{limit:.4g}", healthy, _factor(above), f"{margin.value:.3g}", _factor(below), why))
    for row in thresholds.shipped().rows.values():
        if row.judgement and (row.gates or any(key.startswith("fail_") for key in row.values)):
            fails = "an image" if row.gates else "a machine, or it warns"
            lines.append((row.name, *"-----", f"judgement; it can fail {fails}"))
    return lines


def _factor(room: float) -> str:
    return "any" if math.isinf(room) else f"{room:.3g}x"


def estimates() -> list[Estimate]:
    """Return an estimate for each margin that has the value of an H200."""
    seeds = json.loads(SEEDS.read_text(encoding="utf-8"))
    runs = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    found = []
    for row, margin in margins():
        name, key, limit = row.name, margin.key, row.number(margin.key)
        fails, basis = 0.0, _SURE
        if name in ("C14.loss", "C14.gradient", "C14.direction", "C14.progress"):
            fails, basis = _of_seeds(name, key, limit, seeds["C14"])
        elif name.endswith((".bands", ".stride1")) and key != "element_over_line":
            fails, basis = _of_errors(name, key, limit, seeds["errors"])
        elif name.endswith(".element") or key == "element_over_line":
            fails, basis = _of_largest(limit / margin.healthy["h200"])
        elif name in _RATES:
            fails, basis = _of_runs(name, limit, runs)
        found.append(Estimate(limit=f"{name}.{key}", fails=fails, basis=basis))
    return found


def tail(sigmas: float) -> float:
    """Return how often a normal value is more than ``sigmas`` above its mean."""
    return 0.5 * math.erfc(sigmas / math.sqrt(2))


_METRICS = {
    "C14.loss": "loss_rel_err",
    "C14.gradient": "grad_rel_l2",
    "C14.direction": "grad_one_minus_cos",
    "C14.progress": "loss_ratio_low",
}


def _of_seeds(name: str, key: str, limit: float, tree: dict[str, Any]) -> tuple[float, str]:
    """Estimate a limit of C14 from the least, median and largest value over seeds of each network."""
    count, fails, least = tree["seeds"], 0.0, math.inf
    cases = {case: kinds for case, kinds in tree["cases"].items() if key in ("fail_above", case.partition(".")[2])}
    for kinds in cases.values():
        low, median, _, high = kinds[_METRICS[name]]
        if name == "C14.loss":
            sigma = half_normal(median, high, count) * _UPPER[count]
            sigmas, once = limit / sigma, 2 * tail(limit / sigma)
        else:
            line = limit
            if name == "C14.progress":
                low, median, high, line = (-math.log(1 - value) for value in (low, median, high, limit))
            sigmas = (line - median) / ((high - low) / _RANGE[count] * _UPPER[count])
            once = tail(sigmas)
        fails, least = fails + _SEEDS_PER_RUN * once, min(least, sigmas)
    return fails, f"{len(cases)} networks, {count} seeds each: {least:.1f} standard deviations at least"


def half_normal(median: float, largest: float, count: int) -> float:
    """Return the standard deviation of a normal error whose size has this median, and this largest of ``count``."""
    normal = NormalDist()
    # The median of the largest of n values is the value that each is below with probability 0.5 ** (1 / n).
    return max(median / normal.inv_cdf(0.75), largest / normal.inv_cdf((1 + 0.5 ** (1 / count)) / 2))


def _of_errors(name: str, key: str, limit: float, errors: dict[str, Any]) -> tuple[float, str]:
    """Estimate a limit of C05 or C06 on the error of a whole result from its range over seeds, for the worst case."""
    below = {
        "half_min": ("fp32",),
        "bfloat_min": ("tf32", "fp16"),
        "fault_above": ("bf16",),
        "ieee": ("fp32",),
        "ieee_grad_weight": ("fp32",),
    }.get(key, (key,))
    check, stride1 = name[:3], name.endswith(".stride1")
    worst, seeds = 0.0, 0
    least = math.inf
    for case, item in errors.items():
        kind, _, part = case.partition(" ")
        if not kind.startswith(check) or kind.partition(".")[2] not in below or ("stride1" in part) != stride1:
            continue
        if stride1 and kind.endswith("fp32") and part.endswith("grad_weight") != (key == "ieee_grad_weight"):
            continue
        low, high = item["fro"]
        seeds = item["seeds"]
        sigma = max((high - low) / _RANGE[seeds] * _UPPER[seeds], 1e-12)
        sigmas = (limit - (low + high) / 2) / sigma
        worst, least = worst + tail(sigmas), min(least, sigmas)
    return worst, f"{seeds} seeds of each case: {min(least, 999):.0f} standard deviations at least"


def _of_largest(factor: float) -> tuple[float, str]:
    """Estimate a limit on the largest of many errors, which is ``factor`` times the largest one seen."""
    # The largest of N normal values is about this many standard deviations.
    usual = -NormalDist().inv_cdf(1 / _ELEMENTS)
    return 2 * _ELEMENTS * tail(usual * factor), f"the largest of {_ELEMENTS} errors, {factor:.2g} times above it"


_RATES = {
    "C10.h2d_pinned": ("C10.h2d_pinned_256MiB", "fault a byte that a copy changes"),
    "C10.d2h_pinned": ("C10.d2h_pinned_256MiB", "fault a byte that a copy changes"),
    "gpu.product": ("C26.gpu", "fault a byte that a copy changes"),
}
_HEALTHY = ("quick", "standard", "C10 again 0", "env warnings are errors")


def _of_runs(name: str, limit: float, runs: Sequence[dict[str, Any]]) -> tuple[float, str]:
    """Estimate a floor from the runs whose faults do not touch the rate."""
    ident, other = _RATES[name]
    used = [run for run in runs if run["name"] in (*_HEALTHY, other)]
    found = [_share(item["observed"]) for run in used for item in run["document"]["checks"] if item["id"] == ident]
    center, sigma = mean(found), stdev(found) * _UPPER[len(found)]
    sigmas = (center - limit) / sigma
    return tail(sigmas), f"{len(found)} runs of an H200, {center:.3f}: {sigmas:.0f} standard deviations"


def _share(observed: dict[str, Any]) -> float:
    from envkit.checks import peaks  # noqa: PLC0415 - with the table in force
    from envkit.checks.c10_transfer.judge import link_of  # noqa: PLC0415

    if "link" in observed:
        limit = link_of(observed["link"]).limit
        assert limit is not None
        return float(observed["gb_per_s"]) / limit
    limit = peaks.product_limit(observed)
    assert limit is not None
    return float(observed["rates"]["tflops"]) / limit


def measured(seeds: int) -> list[str]:
    """Compute errors and plant faults on the CPU; return the limits that do not lie between them here."""
    from benchmarks import _limit_faults  # noqa: PLC0415 - only this needs torch

    worst: dict[tuple[str, str], float | None] = {}
    mildest: dict[tuple[str, str], float] = {}
    for name, key, healthy, fault in _limit_faults.measured(seeds):
        place = (name, key or "fail_above")
        before = worst.get(place)
        worst[place] = healthy if before is None or healthy is None else max(before, healthy)
        mildest[place] = min(mildest.get(place, math.inf), fault)
    tell(f"\nMeasured on this CPU, {seeds} seeds:")
    broken = []
    lines: list[tuple[str, ...]] = [("  limit", "value", "healthy, at most", "fault, at least", "fault")]
    for (name, key), value in worst.items():
        row, least = thresholds.shipped().row(name), mildest[name, key]
        limit = row.number(key)
        most = "-" if value is None else f"{value:.3g}"
        lines.append((f"  {name}.{key}", f"{limit:.4g}", most, f"{least:.4g}", row.margins[key].fault))
        if not (value or 0.0) < limit < least:
            broken.append(f"{name}.{key}")
    _print(lines)
    return broken


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        tell("  ".join([*cells, row[-1]]).rstrip())


def main() -> int:
    """Print both tables; return 0 if every limit has room and every estimate reaches the goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument(
        "--measure", nargs="?", type=int, const=100, metavar="SEEDS", help="also plant faults on this CPU"
    )
    options = parser.parse_args()
    _print(table())
    tell("\nHow often a healthy machine fails:")
    found = estimates()
    _print([(f"  {item.limit}", f"{item.fails:.1e}", item.basis) for item in found])
    rooms = [min(margin.room(row.number(margin.key))) for row, margin in margins()]
    figures = [
        Figure(name="least room", figure=min(rooms), unit="x", better="higher", goal=1.0, against="healthy and fault"),
        Figure(
            name="healthy machines that fail",
            figure=1e4 * max(item.fails for item in found),
            unit="1e-4",
            better="lower",
            goal=1e4 * GOAL,
            against="at the limit that fails most of them",
        ),
    ]
    if options.measure:
        broken = measured(options.measure)
        against = ", ".join(broken) or "every limit lies between them here"
        figures.append(
            Figure(name="margins broken here", figure=len(broken), unit="", better="lower", goal=0, against=against)
        )
    return finish("limits", figures)


if __name__ == "__main__":
    sys.exit(main())
