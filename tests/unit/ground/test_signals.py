"""Signals as exceptions, wherever they come."""

import contextlib
import signal
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from envkit.ground import signals
from envkit.ground.errors import EnvkitError, InterruptedRun
from envkit.run.runners import make


class Thing:
    """Something that weak references can point to."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    numbers = signals.ENDING
    before, hook = [signal.getsignal(number) for number in numbers], sys.unraisablehook
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup(1)
    yield
    sys.unraisablehook = hook
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", signals.ENDING)
def test_a_signal_is_an_exception_once(number: signal.Signals) -> None:
    heard: list[bool] = []
    signals.raise_on(*signals.ENDING, on_signal=lambda: heard.append(True))
    with pytest.raises(InterruptedRun) as caught:
        signal.raise_signal(number)
    assert caught.value.exit_code == 128 + number
    assert heard == [True]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.raise_on(*signals.ENDING)
    signal.raise_signal(signal.SIGHUP)
    signals.restore_default(*signals.ENDING)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signals.received() is None


def test_what_tries_something_does_not_take_a_signal_for_its_failure() -> None:
    """Probes, fallbacks and removals catch EnvkitError or Exception and go on."""
    signals.raise_on(signal.SIGTERM)
    assert not issubclass(InterruptedRun, Exception)
    with pytest.raises(InterruptedRun), contextlib.suppress(EnvkitError, Exception):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.requirement("R29")
@pytest.mark.parametrize("runner", ["docker", "podman", "bubblewrap"])
def test_a_signal_during_a_probe_is_no_reason_against_a_runner(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signals.raise_on(signal.SIGTERM)
    for name in ("run.docker.greet", "run.podman.shutil.which", "run.rootless.start.shutil.which"):
        monkeypatch.setattr(f"envkit.{name}", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(InterruptedRun):
        make(runner).probe()


def test_a_signal_that_python_turns_into_another_error_is_still_known() -> None:
    signals.raise_on(signal.SIGTERM)
    assert signals.received() is None

    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises((RuntimeError, InterruptedRun)):  # the first up to Python 3.11
        type("Owner", (), {"field": Field()})
    came = signals.received()
    assert came is not None
    assert came.exit_code == 143
    signals.raise_on(signal.SIGTERM)
    assert signals.received() is None


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
