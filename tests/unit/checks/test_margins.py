"""Each number that can fail an image lies between healthy machines and a planted fault, as recorded runs show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.checks.catalog import judges, select
from envkit.checks.thresholds import Margin, Threshold, Thresholds
from envkit.ground.errors import UsageError
from envkit.verify.judge import judge
from envkit.verify.normalize import normalized
from tests.support.recorded import recordings

TABLE = thresholds.shipped()
H200 = recordings("h200")
CPU = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "cpu-2cores.json").read_text())
# Numbers that warn, explain or select, and fail nothing.
HARMLESS = frozenset(
    {"pass", "warn_below", "error_above", "limit_gb_per_s", "full_max", "full_max_grad_weight", "half_max"}
    | {"bfloat_max"}
)
SLACK = 5e-3
HEALTHY = ("quick", "standard", "C10 again 0")
MARGINS = [(row, margin) for row in TABLE.rows.values() for margin in row.margins.values()]


def named(pairs: list[tuple[Threshold, Margin]]) -> list[Any]:
    return [pytest.param(row, margin, id=f"{row.name}.{margin.key}") for row, margin in pairs]


@pytest.mark.parametrize("name", [name for name, row in TABLE.rows.items() if row.gates and not row.judgement])
def test_each_number_that_can_fail_an_image_has_a_margin(name: str) -> None:
    row = TABLE.row(name)
    numbers = {key for key, value in row.values.items() if isinstance(value, float)}
    assert numbers - HARMLESS == set(row.margins)


@pytest.mark.parametrize(("row", "margin"), named(MARGINS))
def test_a_limit_lies_between_healthy_machines_and_the_fault(row: Threshold, margin: Margin) -> None:
    assert margin.reason
    assert margin.fault
    healthy, fault = margin.room(row.number(margin.key))
    assert healthy > 1
    assert fault > 1


def test_what_has_a_margin_loses_the_mark_and_the_others_keep_it() -> None:
    assert [row.name for row in TABLE.rows.values() if row.judgement and row.margins] == []
    # No machine with two GPUs, NVLink-C2C or slow memory has been recorded.
    marked = {row.name for row in TABLE.rows.values() if row.judgement and row.gates}
    assert marked == {"C10.coherent", "C26.siblings", "C27.copy"}


def test_a_limit_beyond_the_fault_or_below_healthy_machines_has_no_room() -> None:
    ceiling = Margin(key="x", reason="r", healthy={"a": 1.0, "b": 2.0}, fault="f", value=8.0)
    assert ceiling.room(4.0) == (2.0, 2.0)
    assert ceiling.room(1.5)[0] < 1
    assert ceiling.room(9.0)[1] < 1
    floor = Margin(key="x", reason="r", healthy={"a": 9.0, "b": 6.0}, fault="f", value=1.0)
    assert floor.room(2.0) == (3.0, 2.0)
    assert floor.room(7.0)[0] < 1
    assert floor.room(0.5)[1] < 1


def at(name: str, key: str, number: float) -> Thresholds:
    """Return the shipped table with another number in one row."""
    row = TABLE.row(name)
    return replace(TABLE, rows={**TABLE.rows, name: replace(row, values={**row.values, key: number})})


def towards(margin: Margin, *, fault: bool) -> float:
    """Return the worst healthy value, or the fault's, a little on the side that the limit lies on."""
    worst = min(margin.healthy.values()) if margin.is_floor else max(margin.healthy.values())
    start, end = (margin.value, worst) if fault else (worst, margin.value)
    return start + SLACK * (end - start) if not start else start * (1 + SLACK * (1 if end > start else -1))


@pytest.mark.parametrize(("row", "margin"), named([pair for pair in MARGINS if "h200" in pair[1].healthy]))
def test_a_healthy_gpu_passes_at_the_worst_healthy_value(row: Threshold, margin: Margin) -> None:
    with thresholds.using(at(row.name, margin.key, towards(margin, fault=False))):
        for name in HEALTHY:
            assert set(H200[name].codes().values()) <= {
                ("SKIP", "NOT_TOLD"), ("SKIP", "ONE_GPU"), ("WARN", "DATA_BOUND")
            }  # fmt: skip


def on_cpu() -> dict[str, str]:
    """Return the verdict on each finding of the recorded run without a GPU."""
    checks = [item for item in CPU["checks"] if item["id"].startswith("C") and item["status"] is not None]
    document = normalized({"env": CPU["env"], "checks": checks})
    judged = judge(document, CPU["subject"]["spec"], select("deep", CPU["run"]["selected"]), judges())
    return {item.id: str(item.finding.verdict) for item in judged}


@pytest.mark.parametrize(("row", "margin"), named([pair for pair in MARGINS if "cpu" in pair[1].healthy]))
def test_a_healthy_cpu_passes_at_the_worst_healthy_value(row: Threshold, margin: Margin) -> None:
    with thresholds.using(at(row.name, margin.key, towards(margin, fault=False))):
        failed = [ident for ident, verdict in on_cpu().items() if verdict in ("FAIL", "ERROR")]
    assert failed == []


def planted() -> Iterator[Any]:
    """Yield each row with a fault that was planted on the recorded GPU: the recording, the finding, the code."""
    thirds, cores = "fault copies at a third of the rate", "fault products without tensor cores"
    tenth = "fault a GPU at a tenth of its rate"
    yield "C10.h2d_pinned", "fail_below", thirds, "C10.h2d_pinned_256MiB", "BANDWIDTH_BELOW_FLOOR"
    yield "C10.d2h_pinned", "fail_below", thirds, "C10.d2h_pinned_256MiB", "BANDWIDTH_BELOW_FLOOR"
    yield "C15.tensor_cores", "fail_below", cores, "C15.gemm.fp16", "TENSOR_CORES_UNUSED"
    yield "gpu.product", "fail_below", tenth, "C15.gemm.fp16", "PRODUCTS_BELOW_FLOOR"
    yield "gpu.product", "fail_below", tenth, "C26.gpu", "PRODUCTS_BELOW_FLOOR"
    yield "C05.bands", "half_min", "env TF32 forced", "C05.default", "PRECISION_OVERRIDDEN"


@pytest.mark.parametrize(("name", "key", "run", "finding", "code"), list(planted()))
def test_a_planted_fault_is_named_at_its_mildest_value(name: str, key: str, run: str, finding: str, code: str) -> None:
    margin = TABLE.row(name).margins[key]
    with thresholds.using(at(name, key, towards(margin, fault=True))):
        assert H200[run].codes()[finding] == ("FAIL", code)


def test_controls_of_healthy_runs_are_above_the_limits() -> None:
    """Each run plants these faults itself; their errors are in the details of its controls."""
    seen: dict[str, list[float]] = {}
    for name in ("quick", "standard"):
        for item in H200[name].document["checks"]:
            for control in item["controls"]:
                words = control["detail"].split()
                if words[:2] in (["relative", "error"], ["element", "error"], ["relative", "L2"]):
                    kind = control["name"].partition(".")[0]
                    seen.setdefault(f"{item['id'][:3]}.{kind}", []).append(float(words[2]))
    faults = {
        "C05.one_64th_of_k_dropped": ("C05.bands", "fault_above"),
        "C05.one_element_zeroed": ("C05.element", "bf16"),
        "C06.one_tap_of_one_channel_dropped": ("C06.bands", "fault_above"),
        "C06.one_element_zeroed": ("C06.element", "bf16"),
        "C14.gradient_without_a_layer": ("C14.gradient", "bf16"),
    }
    for control, (name, key) in faults.items():
        assert min(seen[control]) >= TABLE.row(name).margins[key].value * (1 - SLACK)


ROW = """schema: envkit.thresholds/1
links: {generations: {3: {gt_per_s: 8.0, payload: 0.98}}}
rules:
  C05.x: {applies_to: [C05.fp32], type: band, gates: true, unit: '1', values: {low: 1.0}, source: [x], margins: %s}
"""


@pytest.mark.parametrize(
    ("margins", "message"),
    [
        ("1", "C05.x.margins: not a mapping"),
        ("{high: {}}", "C05.x.margins.high: the row has no number of this name"),
        ("{low: {reason: r, healthy: {a: 1}}}", "margins.low: needs reason, healthy and fault"),
        ("{low: {reason: r, healthy: {}, fault: {what: f, value: 1}}}", "margins.low: healthy needs numbers"),
        ("{low: {reason: r, healthy: {a: b}, fault: {what: f, value: 1}}}", "margins.low: healthy needs numbers"),
        ("{low: {reason: r, healthy: {a: 1}, fault: {what: f}}}", "margins.low: healthy needs numbers"),
    ],
)
def test_an_incomplete_margin_is_refused(margins: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        thresholds.parse(ROW % margins, "t")
