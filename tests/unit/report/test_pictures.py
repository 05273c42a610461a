from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.checks.c10_transfer.show import transfers
from envkit.checks.c12_loader.show import loadings
from envkit.checks.c14_amp.show import precisions
from envkit.checks.c23_training.show import step_time
from envkit.checks.sheet import Errors, Lines, Parts, Ratios, Spread, Strips, Values, short
from envkit.report import html
from envkit.report.html.charts import WIDTH, draw, ticks
from envkit.report.html.frame import SHAPES
from envkit.report.html.page import render_html
from envkit.report.measured import quantile, spreads
from tests.support.records import cpu_record, gpu_record
from tests.support.shown import of

POSITIVE = st.floats(min_value=1e-6, max_value=1e9)


def inside(drawn: str) -> None:
    """Every coordinate lies in the picture."""
    box = re.search(r'viewBox="0 0 (\d+) ([\d.]+)"', drawn)
    assert box is not None
    width, height = float(box[1]), float(box[2])
    assert width == WIDTH
    for name, limit in (("x", width), ("x1", width), ("x2", width), ("cx", width), ("cy", height), ("y", height)):
        for value in re.findall(rf' {name}="([^"]+)"', drawn):
            assert -0.1 <= float(value) <= limit + 0.1, f"{name}={value}"
    for points in re.findall(r'points="([^"]+)"', drawn):
        for pair in points.split():
            x, y = (float(part) for part in pair.split(","))
            assert -1 <= x <= width + 1
            assert -1 <= y <= height + 1
    for x, wide in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn):
        assert float(x) + float(wide) <= width + 0.1


@given(POSITIVE)
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0
    assert found[-1] >= top * (1 - 1e-6)
    assert 2 <= len(found) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (63.0154, "63"),
        (0.0502, "0.0502"),
        (1.5, "1.5"),
        (3904.2, "3904"),
        (5.2e-7, "5.2e-07"),
        (2e9, "2.0e+09"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


@given(st.dictionaries(st.integers(0, 64), POSITIVE, min_size=1, max_size=6), POSITIVE)
def test_lines_stay_in_their_picture(points: dict[int, float], limit: float) -> None:
    steps = sorted(points)
    inside(
        draw(
            Lines(
                ident="x",
                title="t",
                summary="d",
                steps=steps,
                x_label="a",
                y_label="u",
                series=[("s", points)],
                limits=[("l", limit)],
                marked=1,
            )
        )
    )


@given(st.lists(st.tuples(st.just("mlp fp16"), POSITIVE), min_size=1, max_size=5))
def test_bars_and_dots_stay_in_their_picture(rows: list[tuple[str, float]]) -> None:
    inside(draw(Ratios("x", "t", "d", rows, reference="time of fp32")))
    inside(draw(Errors("x", "t", "d", rows)))
    inside(draw(Values("x", "t", "d", rows, unit="ms")))
    inside(draw(Values("x", "t", "d", rows, unit="ms", limits=rows[:1], floors=[(0, "least", rows[-1][1])])))
    inside(draw(Parts("x", "t", "d", [("row", [(name, value, "s0") for name, value in rows])], unit="ms")))


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_samples_stay_in_their_picture_and_those_beyond_are_counted(values: list[float]) -> None:
    drawn = draw(Strips("x", "t", "d", [Spread("C10.x", tuple(values), "ms", noisy=False)]))
    inside(drawn)
    assert drawn.count('class="dot"') + drawn.count('class="beyond"') == len(values)
    told = re.search(r"(\d+) beyond", drawn)
    assert drawn.count('class="beyond"') == (int(told[1]) if told else 0)


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_a_quantile_lies_between_the_extremes(values: list[float]) -> None:
    low, middle, high = (quantile(values, part) for part in (0.0, 0.5, 1.0))
    assert (low, high) == (min(values), max(values))
    assert low <= middle <= high


def test_the_floor_is_drawn_at_the_size_that_it_holds_for_and_unlike_the_limit() -> None:
    """Across all sizes, points that pass lay below a line that said 'fails below'."""
    page = render_html(gpu_record()).decode()
    drawn = {kind: re.findall(f'<line [^>]*class="{kind}"[^>]*>', page) for kind in ("floor", "limit")}
    assert len(drawn["floor"]) == 2 + 4, "one in each direction; those of two bars, each with its line below"
    floor, limit = ([float(number) for number in re.findall(r'x[12]="([\d.]+)"', drawn[kind][0])] for kind in drawn)
    assert floor[1] - floor[0] < (limit[1] - limit[0]) / 5
    assert floor[0] > limit[0] + (limit[1] - limit[0]) / 2, "at the largest size, on the right"
    assert "256 MiB: fails below 31.5" in page
    css = (Path(html.__file__).parent / "report.css").read_text()
    assert ".limit { stroke: var(--quiet)" in css
    assert ".floor { stroke: var(--floor)" in css


def test_the_floor_of_a_bar_stands_in_its_row_alone() -> None:
    rows = [("fp32", 50.0), ("fp16", 700.0)]
    drawn = draw(
        Values("x", "t", "d", rows, unit="u", floors=[(1, "fp16 fails below 75", 75.0)], limits=[("p", 1000.0)])
    )
    inside(drawn)
    assert "fp16 fails below 75" in drawn
    (x1, y1, _, y2), *_ = re.findall(
        r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="floor"', drawn
    )
    (bar,) = re.findall(r'<rect x="118" y="([\d.]+)" width="([\d.]+)"[^>]*class="fill s0"', drawn)[1:]
    assert float(y1) <= float(bar[0]) < float(y2)
    assert 118 < float(x1) < 118 + float(bar[1])


def test_no_verdict_is_a_question_mark_in_a_diamond() -> None:
    drawn = list(SHAPES.values())
    assert len(set(drawn)) == len(drawn), "each verdict has a shape of its own"
    assert SHAPES["NOT_VERIFIED"][0] != SHAPES["INCONCLUSIVE"][0]


def test_samples_are_read() -> None:
    checks = gpu_record()["checks"]
    assert {check: len(found) for check, found in spreads(checks).items()} == {
        "C10": 16,
        "C11": 1,
        "C14": 12,
        "C15": 3,
        "C20": 1,
        "C21": 2,
        "C22": 2,
        "C23": 1,
        "C24": 1,
    }


def test_what_was_not_measured_is_not_there() -> None:
    checks = cpu_record()["checks"]
    assert (
        transfers(of(checks, "C10")),
        loadings(of(checks, "C12")),
        precisions(of(checks, "C14")),
        spreads(checks),
    ) == ([], [], [], {})
    assert step_time(of(checks, "C23")) is None
