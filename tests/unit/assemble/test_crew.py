import threading
import time

import pytest

from envkit.assemble.crew import Crew, Tally
from envkit.ground.errors import IntegrityError, TimeLimitError
from envkit.ground.process import StoppedError
from tests.support.heard import Heard


def test_results_come_by_job() -> None:
    crew: Crew[int, int] = Crew(lambda job: job * 2, Tally(Heard(), None))
    with crew:
        for job in (1, 2, 3):
            crew.give(job)
        assert crew.results() == {1: 2, 2: 4, 3: 6}


def test_the_first_failure_ends_the_rest_and_is_the_one_that_is_told() -> None:
    tally, begun = Tally(Heard(), None), threading.Event()

    def work(job: str) -> None:
        if job == "bad":
            assert begun.wait(10)
            raise IntegrityError("damaged")
        begun.set()
        while True:
            tally.add(1)
            time.sleep(0.001)

    def run(crew: Crew[str, None]) -> None:
        for job in ("endless", "bad", "never begun"):
            crew.give(job)
        crew.results()

    with pytest.raises(IntegrityError, match="damaged"), Crew(work, tally, workers=2) as crew:
        run(crew)


def test_whoever_feeds_the_crew_learns_of_its_failure() -> None:
    tally = Tally(Heard(), None)

    def work(_: int) -> None:
        raise IntegrityError("damaged")

    def feed(crew: Crew[int, None]) -> None:
        crew.give(1)
        while True:
            crew.check()
            time.sleep(0.001)

    with pytest.raises(IntegrityError, match="damaged"), Crew(work, tally) as crew:
        feed(crew)


def test_a_failure_outside_ends_the_crew() -> None:
    tally, begun, ended = Tally(Heard(), None), threading.Event(), threading.Event()

    def work(_: int) -> None:
        begun.set()
        try:
            while True:
                tally.add(1)
                time.sleep(0.001)
        except StoppedError:
            ended.set()
            raise

    def fail(crew: Crew[int, None]) -> None:
        crew.give(1)
        assert begun.wait(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Crew(work, tally) as crew:
        fail(crew)
    assert ended.is_set()


def test_the_time_limit_ends_work() -> None:
    with pytest.raises(TimeLimitError, match="time limit") as caught:
        Tally(Heard(), time.monotonic() - 1).add(1)
    assert "--timeout" in (caught.value.hint or "")


def test_bytes_are_told_once_it_may_speak_and_never_exceed_their_total() -> None:
    heard = Heard()
    tally = Tally(heard, None)
    tally.expect(10)
    tally.add(4)
    assert heard.progress == []
    tally.speak()
    tally.add(4)
    tally.add(4)
    assert heard.progress == [(8, 10), (12, 12)]
