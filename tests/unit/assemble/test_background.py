"""A task in the background: who reports, and that neither side outlives the other's failure."""

import threading
import time

import pytest

from envkit.assemble.background import Background
from envkit.ground.progress import Reporter, Silent
from tests.support.heard import Heard


def test_the_result_and_who_speaks_meanwhile() -> None:
    heard, in_front, go_on = Heard(), threading.Event(), threading.Event()

    def work(reporter: Reporter, stop: threading.Event) -> int:
        reporter.step("make the base")
        reporter.log("unheard")
        in_front.set()
        assert go_on.wait(10)
        deadline = time.monotonic() + 10
        while "step make the base" not in heard.order and time.monotonic() < deadline:
            time.sleep(0.001)
        reporter.log("heard")
        assert not stop.is_set()
        return 7

    with Background(work, heard) as task:
        assert in_front.wait(10)
        heard.step("download")
        task.check()
        go_on.set()
        assert task.result() == 7
    assert heard.order == ["note in parallel: make the base", "step download", "step make the base", "log heard"]


def test_a_failure_is_seen_by_a_look_and_by_the_result() -> None:
    def work(reporter: Reporter, stop: threading.Event) -> None:
        del reporter, stop
        raise ValueError("no mirror")

    with Background(work, Silent()) as task:
        with pytest.raises(ValueError, match="no mirror"):
            task.result()
        with pytest.raises(ValueError, match="no mirror"):
            task.check()


def test_a_failure_in_front_ends_the_work() -> None:
    ended = threading.Event()

    def work(reporter: Reporter, stop: threading.Event) -> None:
        del reporter
        assert stop.wait(10)
        ended.set()

    with pytest.raises(KeyError), Background(work, Silent()):
        raise KeyError("download")
    assert ended.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "envkit-background"]
