"""One time limit over everything a command waits for."""

import signal
import threading
import time
from contextlib import suppress

import pytest

from envkit.cli.main import run
from envkit.ground.errors import EnvironmentProblem, TimeLimitError
from envkit.pipeline.deadline import Deadline
from tests.support.clocks import before


def test_a_wait_without_a_clock_is_interrupted_and_named() -> None:
    limit = Deadline(0.2, lambda: "lock: solve 3 wheels")
    with before(20), pytest.raises(TimeLimitError) as caught, limit.holds():
        threading.Event().wait(20)
    assert caught.value.message == "the time limit of 0.2 s was reached at: lock: solve 3 wheels"
    assert "--timeout SECONDS" in (caught.value.hint or "")
    assert caught.value.exit_code == 124


def test_work_that_keeps_the_time_itself_tells_its_own_part() -> None:
    limit = Deadline(0.1, lambda: "build train")
    time.sleep(0.2)
    with pytest.raises(TimeLimitError) as caught, limit.holds(alarm=False):
        raise TimeLimitError("the build reached its limit at step 3", details=("RUN pip",))
    assert caught.value.message == "the time limit of 0.1 s was reached at: build train"
    assert caught.value.details == ("the build reached its limit at step 3", "RUN pip")


def test_another_limit_is_not_taken_for_this_one() -> None:
    with pytest.raises(TimeLimitError, match="the server is silent"), Deadline(60, lambda: "").holds():
        raise TimeLimitError("the server is silent")


def test_other_failures_pass() -> None:
    with pytest.raises(EnvironmentProblem, match="disk full"), Deadline(60, lambda: "").holds():
        raise EnvironmentProblem("disk full")


def test_what_is_swallowed_on_the_way_counts_all_the_same() -> None:
    limit = Deadline(0.1, lambda: "push")
    with pytest.raises(TimeLimitError, match="at: push"), limit.holds(), suppress(TimeLimitError):
        time.sleep(5)


def test_without_a_limit_nothing_rings() -> None:
    limit = Deadline(None, lambda: "")
    with limit.holds():
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_IGN
    assert limit.left() is None


def test_the_deadline_is_one_for_all_phases() -> None:
    limit = Deadline(50, lambda: "")
    with limit.holds():
        time.sleep(0.01)
    left = limit.left()
    assert left is not None
    assert 40 < left <= 50


def test_a_timer_that_was_set_before_goes_on() -> None:
    before = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 500, 7)
    try:
        with Deadline(60, lambda: "").holds():
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 60
        remaining, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 400 < remaining <= 500
        assert interval == 7
        assert signal.getsignal(signal.SIGALRM) is before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.requirement("R4")
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "0", "x"])
@pytest.mark.parametrize("verb", ["build", "push", "verify", "inspect", "diff", "attest", "lock", "doctor"])
def test_a_limit_is_a_number_of_seconds(verb: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--timeout", text]) == 2
    assert "--timeout" in capsys.readouterr().err
