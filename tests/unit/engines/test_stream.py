import threading
import time
from collections.abc import Iterator

import pytest

from envkit.engines.stream import Stream
from tests.support.clocks import before


def test_items_come_in_order_and_the_source_is_cut_at_the_end() -> None:
    cuts: list[int] = []
    with Stream(lambda: range(1000), lambda: cuts.append(1), None) as stream:
        assert list(stream) == list(range(1000))
    assert cuts == [1]


def test_what_the_source_raises_is_raised() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    heard: list[int] = []
    with pytest.raises(KeyError), Stream(source, lambda: None, None) as stream:
        heard.extend(stream)
    assert heard == [1]


def test_the_limit_holds_while_the_source_blocks() -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        gate.wait(30)
        yield 1

    with before(30), pytest.raises(TimeoutError), Stream(source, gate.set, 0.2) as stream:
        list(stream)


def test_a_source_that_is_faster_than_its_reader_waits() -> None:
    produced: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100_000):
            produced.append(number)
            yield number

    with Stream(source, lambda: None, None) as stream:
        for number in stream:
            if number == 10:
                break
        time.sleep(0.1)
        assert len(produced) < 1000


def test_a_stream_may_be_given_less_time_while_it_is_read() -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        gate.wait(30)

    with before(30), Stream(source, gate.set, None) as stream:
        items = iter(stream)
        assert next(items) == 1
        stream.within(0.2)
        with pytest.raises(TimeoutError):
            next(items)
