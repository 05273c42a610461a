from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

timing: Any = import_module("envkit.smoke.timing")


class ScriptedClock:
    """Each call of a function costs what its script says, in milliseconds; the last value repeats."""

    label = "scripted"

    def __init__(self, scripts: dict[Any, list[float]]) -> None:
        self.scripts = {fn: list(costs) for fn, costs in scripts.items()}
        self.order: list[Any] = []

    def __call__(self, fn: Any, loops: int) -> float:
        self.order.append(fn)
        costs = self.scripts[fn]
        cost = costs.pop(0) if len(costs) > 1 else costs[0]
        return cost * loops


def fast() -> None:
    """Name one variant."""


def slow() -> None:
    """Name another."""


def test_one_sample_lasts_ten_milliseconds() -> None:
    loops = timing.inner_loops(fast, ScriptedClock({fast: [0.3]}))
    assert 0.3 * loops >= 10 > 0.3 * (loops - 6)


def test_a_long_call_is_not_repeated() -> None:
    assert timing.inner_loops(slow, ScriptedClock({slow: [25.0]})) == 1


def test_a_call_of_no_measurable_length_ends() -> None:
    assert timing.inner_loops(fast, ScriptedClock({fast: [0.0]})) == timing.MAX_INNER_LOOPS


def test_warm_up_discards_until_two_medians_agree() -> None:
    cooling = [100.0, 60.0, 40.0, 30.0, 25.0, 22.0, 20.5, 20.1, 20.0]
    discarded = timing.warm_up(fast, ScriptedClock({fast: cooling}), 1)
    # After 13 the older median is still 22.0; after 14 it is 20.5, within 5 % of 20.0.
    assert discarded == 14


def test_warm_up_of_a_steady_call_takes_two_windows() -> None:
    assert timing.warm_up(fast, ScriptedClock({fast: [20.0]}), 1) == 10


def test_warm_up_ends_at_its_cap_but_discards_three() -> None:
    assert timing.warm_up(fast, ScriptedClock({fast: [5000.0]}), 1, cap_s=2.0) == 3


def test_variants_are_interleaved() -> None:
    clock = ScriptedClock({fast: [20.0], slow: [40.0]})
    measured = timing.measure([("a", fast), ("b", slow)], clock, samples=20)
    assert clock.order[-40:] == [fast, slow] * 20
    assert measured["a"]["stats"]["median"] == 20.0
    assert measured["b"]["stats"]["median"] == 40.0
    assert measured["a"]["samples"]["clock"] == "scripted"
    assert measured["a"]["samples"]["n"] == 20


def test_values_are_per_call() -> None:
    measured = timing.measure([("a", fast)], ScriptedClock({fast: [0.5]}), bytes_per_call=64)
    assert measured["a"]["stats"]["median"] == pytest.approx(0.5)
    assert measured["a"]["samples"]["inner_loops"] >= 20
    assert measured["a"]["samples"]["bytes"] == 64


def test_budget_never_goes_below_five_rounds() -> None:
    measured = timing.measure([("a", fast)], ScriptedClock({fast: [20.0]}), budget_s=0.0)
    assert measured["a"]["samples"]["n"] == 5


def test_record_keeps_two_hundred_values_and_counts_all() -> None:
    record = timing.sample_record([1.0] * 250, clock="perf_counter")
    assert (record["n"], len(record["values"])) == (250, 200)


def test_statistics_report_the_maximum_a_median_hides() -> None:
    stats = timing.statistics([4.0] * 9 + [55.0])
    assert (stats["median"], stats["max"], stats["rel_iqr"]) == (4.0, 55.0, 0.0)


def test_statistics_of_nothing() -> None:
    assert timing.statistics([]) is None


@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=50))
def test_statistics_are_ordered(values: list[float]) -> None:
    stats = timing.statistics(values)
    assert stats["min"] <= stats["p25"] <= stats["median"] <= stats["p75"] <= stats["max"]
    assert stats["n"] == len(values)


def test_wall_clock_synchronises_on_both_sides() -> None:
    events: list[str] = []
    clock = timing.wall_clock(lambda: events.append("sync"))
    clock(lambda: events.append("work"), 2)
    assert events == ["sync", "work", "work", "sync"]
    assert clock.label == "perf_counter+sync"


@pytest.fixture
def launch() -> Any:
    """Launch settings that end with the test."""
    yield timing.prepare_launch
    timing.prepare_launch({})


class Counting:
    """A clock that counts the calls it times, a millisecond each."""

    label = "perf_counter"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, fn: Any, loops: int) -> float:
        assert callable(fn)
        self.calls.append(loops)
        return float(loops)


def test_processor_time_stands_beside_a_wall_clock_that_waits_for_no_device() -> None:
    found = timing.measure([("a", fast)], clock=timing.wall_clock(), samples=3, min_sample_ms=0.01)["a"]["samples"]
    assert len(found["cpu_values"]) == found["n"] == 3
    assert all(value >= 0 for value in found["cpu_values"])
    scripted = timing.measure([("a", fast)], clock=ScriptedClock({fast: [20.0]}), samples=3)["a"]["samples"]
    assert "cpu_values" not in scripted


def test_processor_time_does_not_count_what_is_slept() -> None:
    def sleeping() -> None:
        timing.time.sleep(0.02)

    found = timing.measure([("a", sleeping)], clock=timing.wall_clock(), samples=5)["a"]["samples"]
    assert min(found["values"]) >= 20
    assert min(found["cpu_values"]) < 5


@pytest.mark.parametrize("factor", [1.25, 1.5, 2])
def test_a_repeated_body_takes_exactly_so_much_longer_and_says_so(launch: Any, factor: float) -> None:
    launch({"body_factor": factor})
    clock = Counting()
    found = timing.measure([("a", fast)], clock=clock, samples=4)["a"]["samples"]
    assert found["values"] == [factor] * 4
    assert found["body_factor"] == factor
    assert clock.calls[-1] == found["inner_loops"] * factor


def test_an_honest_run_says_nothing_of_a_repeated_body() -> None:
    found = timing.measure([("a", fast)], clock=Counting(), samples=4)["a"]["samples"]
    assert found["values"] == [1.0] * 4
    assert "body_factor" not in found


def test_more_effort_is_more_samples(launch: Any) -> None:
    launch({"effort": 3})
    assert timing.effort() == 3
    assert timing.measure([("a", fast)], clock=Counting(), samples=4)["a"]["samples"]["n"] == 12


@pytest.mark.parametrize("value", [0.5, 9, True, "2", None])
@pytest.mark.parametrize("name", ["effort", "body_factor"])
def test_other_launches_are_refused(launch: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"launch.{name} is 1 to 8"):
        launch({name: value})
