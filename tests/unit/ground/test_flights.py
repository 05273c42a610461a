"""One maker at a time: what is free, what is waited for, and what is left."""

import threading
import time
from pathlib import Path

import pytest

from envkit.ground.store import Flights


class StopError(Exception):
    """What a check raises here."""


def test_a_key_has_one_maker(tmp_path: Path) -> None:
    flights = Flights(tmp_path)
    with flights.free(["a", "b"]) as mine:
        assert mine == {"a", "b"}
        with Flights(tmp_path).free(["b", "c"]) as theirs:
            assert theirs == {"c"}
    with flights.free(["a", "b", "c"]) as mine:
        assert mine == {"a", "b", "c"}
    assert not list(tmp_path.iterdir())


def test_who_waits_goes_on_when_the_maker_is_done(tmp_path: Path) -> None:
    flights, order = Flights(tmp_path), list[str]()
    began = threading.Event()

    def other() -> None:
        began.set()
        Flights(tmp_path).wait("a", lambda: None)
        order.append("waited")

    thread = threading.Thread(target=other)
    with flights.free(["a"]):
        thread.start()
        assert began.wait(10)
        time.sleep(0.1)
        order.append("made")
    thread.join(10)
    assert order == ["made", "waited"]


def test_waiting_ends_when_the_work_is_in_vain(tmp_path: Path) -> None:
    flights = Flights(tmp_path)

    def stop() -> None:
        raise StopError

    with flights.free(["b"]):
        with pytest.raises(StopError), Flights(tmp_path).all(["b", "a"], stop):
            pytest.fail("b is another's")
        with flights.free(["a"]) as mine:  # what was taken before is given back
            assert mine == {"a"}


def test_two_that_want_the_same_keys_in_another_order_both_come_to_an_end(tmp_path: Path) -> None:
    count = [0]

    def work(keys: list[str]) -> None:
        for _ in range(20):
            with Flights(tmp_path).all(keys, lambda: None):
                seen = count[0]
                time.sleep(0.0005)
                count[0] = seen + 1

    threads = [threading.Thread(target=work, args=(keys,)) for keys in (["a", "b", "c"], ["c", "b", "a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert count == [40]


def test_a_lock_that_a_dead_maker_left_holds_nobody_up(tmp_path: Path) -> None:
    flights = Flights(tmp_path)
    with flights.free(["a"]):
        (left,) = tmp_path.iterdir()
        name = left.name
    (tmp_path / name).touch()
    with flights.free(["a"]) as mine:
        assert mine == {"a"}


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), Flights(tmp_path / "none").free(["a"]):
        pytest.fail("there is no folder")
