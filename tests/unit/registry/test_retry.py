"""How often something is tried, and how long the pauses are."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, TimeLimitError
from envkit.registry.retry import Policy, TransientError, delay, persist, retry_after

POLICY = Policy()
NOW = 1_600_000_000.0


def test_pauses_double_up_to_a_limit() -> None:
    assert [delay(tries, None, POLICY, 0.0) for tries in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_chance_takes_at_most_half(tries: int, chance: float) -> None:
    longest = delay(tries, None, POLICY, 0.0)
    assert longest / 2 <= delay(tries, None, POLICY, chance) <= longest


def test_what_the_server_asks_for_counts_within_the_limit() -> None:
    assert delay(1, 7.0, POLICY, 0.9) == 7.0
    assert delay(1, 86400.0, POLICY, 0.0) == 60.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("0", 0.0),
        (" 12 ", 12.0),
        ("9" * 400, 999_999_999.0),
        ("Sun, 13 Sep 2020 12:26:50 GMT", 10.0),
        ("Sun, 13 Sep 2020 12:26:30 GMT", 0.0),
        ("Sun, 99 Sep 2020 12:26:30 GMT", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


def failing(*errors: Exception) -> tuple[list[float], str | None, Exception | None]:
    """Pauses, result and final error of work that raises these one after another."""
    left, pauses = list(errors), list[float]()
    clock = itertools.accumulate(itertools.repeat(0.0))

    def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    try:
        got = persist(work, POLICY, sleep=pauses.append, clock=lambda: next(clock), chance=lambda: 0.0)
    except Exception as error:  # noqa: BLE001 - it is what the tests look at
        return pauses, None, error
    return pauses, got, None


def lost(**changes: float | bool) -> TransientError:
    return TransientError(EngineError("lost"), **changes)  # type: ignore[arg-type]


def test_success_after_failures() -> None:
    assert failing(lost(), lost(wait_s=5.0), lost()) == ([1.0, 5.0, 4.0], "done", None)


@pytest.mark.requirement("R19")
def test_it_ends_after_five_tries() -> None:
    pauses, _, error = failing(*(lost() for _ in range(9)))
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert isinstance(error, EngineError)
    assert error.details == ("tried 5 times within 0 s",)


def test_progress_starts_the_count_anew() -> None:
    pauses, got, _ = failing(*(lost(progressed=True) for _ in range(20)))
    assert (pauses, got) == ([1.0] * 20, "done")


@pytest.mark.requirement("R19")
def test_other_errors_are_not_tried_again() -> None:
    pauses, _, error = failing(IntegrityError("wrong"))
    assert pauses == []
    assert isinstance(error, IntegrityError)


def test_the_total_time_is_limited() -> None:
    ticks = itertools.count(0.0, 400.0)
    seen = list[float]()

    def work() -> None:
        raise lost(progressed=True)

    with pytest.raises(EngineError) as caught:
        persist(work, POLICY, sleep=seen.append, clock=lambda: next(ticks), chance=lambda: 0.0)
    assert len(seen) == 2
    assert caught.value.details == ("tried once within 1600 s",)


def test_nothing_waits_beyond_the_end_of_the_run() -> None:
    over = Policy(deadline=time.monotonic() - 1)
    with pytest.raises(TimeLimitError, match="the build reached its time limit"):
        over.check()
    assert over.within(60.0) == 0.01
    soon = Policy(deadline=time.monotonic() + 5)
    soon.check()
    assert 4 < soon.within(60.0) <= 5
    assert soon.within(1.0) == 1.0
    Policy().check()
    assert Policy().within(60.0) == 60.0


def test_no_further_try_begins_when_the_run_is_over() -> None:
    calls: list[float] = []

    def work() -> None:
        calls.append(1)
        raise TransientError(EnvironmentProblem("away"))

    with pytest.raises(TimeLimitError):
        persist(work, Policy(deadline=time.monotonic() - 1), sleep=calls.append)
    assert calls == [1]
