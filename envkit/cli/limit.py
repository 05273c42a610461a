"""One time limit for a whole command, from the moment it began, whatever it waits for."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from envkit.ground.errors import TimeLimitError

_LEAST_S = 0.001  # a timer of 0 s would never ring
_LONGEST_S = 366 * 86400.0  # a timer of the system takes no more than some billions
_NEAR_S = 0.5  # work that keeps the time itself may end so much before the limit


Command = TypeVar("Command", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds, one at least; neither `inf` nor `nan` is one."""

    def __init__(self) -> None:
        super().__init__(min=1, max=_LONGEST_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):  # it is neither smaller nor larger than any limit
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return found


def limit_option(text: str = "Time limit of the whole command.") -> Callable[[Command], Command]:
    """The option `--timeout`; `text` is its help."""
    return click.option("--timeout", type=Seconds(), metavar="SECONDS", help=text)


class Limit:
    """The deadline of a command.

    Args:
        seconds: what `--timeout` says; None = no limit.
        phase: what the command is at.
    """

    def __init__(self, seconds: float | None, phase: Callable[[], str]) -> None:
        self._seconds, self._phase = seconds, phase
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds until the deadline, in tenths and never none; None without a deadline."""
        return None if self._end is None else max(round(self._end - time.monotonic(), 1), 0.1)

    @contextmanager
    def holds(self, *, rings: bool = True) -> Iterator[None]:
        """Work that the limit holds for; main thread only.

        At the deadline the work is interrupted as Ctrl-C interrupts it: whatever it waits for, its child processes
        end and its passing files go. With `rings` False the work keeps the time itself (see `left`).

        Raises:
            TimeLimitError: the deadline was reached; the message says at what.
        """
        if self._end is None:
            yield
            return
        try:
            if rings:
                with _alarm(self._end):
                    yield
            else:
                yield
        except TimeLimitError as error:
            if time.monotonic() < self._end - _NEAR_S:
                raise  # a limit of its own
            own = (error.message, *error.details) if error.message else error.details
            raise TimeLimitError(
                f"the time limit of {self._seconds:g} s was reached at: {self._phase()}",
                hint="--timeout SECONDS gives it more; what was downloaded and made is kept for the next run",
                details=own,
            ) from error


@contextmanager
def _alarm(end: float) -> Iterator[None]:
    """TimeLimitError in this thread at `end` of the monotonic clock; a timer that was set before goes on afterwards."""
    began = time.monotonic()
    rings = False

    def ring(number: int, frame: FrameType | None) -> None:
        del number, frame
        nonlocal rings
        rings = True
        raise TimeLimitError("")

    handler = signal.signal(signal.SIGALRM, ring)
    before, interval = signal.setitimer(signal.ITIMER_REAL, max(end - began, _LEAST_S))
    try:
        yield
        if rings:  # something took the exception for one of its own
            raise TimeLimitError("")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if before:
            signal.setitimer(signal.ITIMER_REAL, max(before - (time.monotonic() - began), _LEAST_S), interval)
