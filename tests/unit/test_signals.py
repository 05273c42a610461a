"""Signals as exceptions, wherever they come."""

import signal
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from envkit import signals
from envkit.errors import InterruptedRun


class Thing:
    """Something that weak references can point to."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before, hook = [signal.getsignal(number) for number in numbers], sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_exception_once(number: signal.Signals) -> None:
    heard: list[bool] = []
    signals.raise_on(signal.SIGINT, signal.SIGTERM, noted=lambda: heard.append(True))
    with pytest.raises(InterruptedRun) as caught:
        signal.raise_signal(number)
    assert caught.value.exit_code == 128 + number
    assert heard == [True]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_python_drops_comes_again() -> None:
    signals.raise_on(signal.SIGTERM)
    things, dropped = [Thing()], []

    def forgotten(_: object) -> None:
        dropped.append(True)
        signal.raise_signal(signal.SIGTERM)

    def forget() -> None:
        things.clear()
        time.sleep(10)

    kept = weakref.ref(things[0], forgotten)
    with pytest.raises(InterruptedRun) as caught:
        forget()
    assert caught.value.exit_code == 143
    assert dropped == [True]
    assert kept() is None


def test_what_else_python_drops_is_told_as_before() -> None:
    told: list[object] = []
    sys.unraisablehook = lambda what: told.append(what.exc_value)
    signals.raise_on(signal.SIGTERM)
    thing, error = Thing(), ValueError("x")

    def forgotten(_: object) -> None:
        raise error

    kept = weakref.ref(thing, forgotten)
    del thing
    assert told == [error]
    assert kept() is None
