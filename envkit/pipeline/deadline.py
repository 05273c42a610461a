"""A time limit for a whole command, counted from its start."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from envkit.ground.errors import TimeLimitError

_LEAST_S = 0.001  # a timer of 0 s would never fire
_NEAR_S = 0.5  # work with its own timer may end this much before the deadline


class Deadline:
    """The deadline of a command.

    Args:
        seconds: the value of `--timeout`; None = no limit.
        phase: returns the current step of the command, for the message.
    """

    def __init__(self, seconds: float | None, phase: Callable[[], str]) -> None:
        self._seconds, self._phase = seconds, phase
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds until the deadline, at least 0.1, rounded to tenths; None without a deadline."""
        return None if self._end is None else max(round(self._end - time.monotonic(), 1), 0.1)

    @contextmanager
    def holds(self, *, alarm: bool = True) -> Iterator[None]:
        """Apply the deadline to the work in this block; main thread only.

        At the deadline the work is interrupted as by Ctrl-C: its child processes end and its temporary files are
        removed. With `alarm` False no alarm is set, and the work has to end in time by itself (see `left`).

        Raises:
            TimeLimitError: the deadline was reached; the message names the step.
        """
        if self._end is None:
            yield
            return
        try:
            if alarm:
                with _alarm(self._end):
                    yield
            else:
                yield
        except TimeLimitError as error:
            if time.monotonic() < self._end - _NEAR_S:
                raise  # another, shorter limit within the work
            own = (error.message, *error.details) if error.message else error.details
            raise TimeLimitError(
                f"the time limit of {self._seconds:g} s was reached at: {self._phase()}",
                hint="raise --timeout SECONDS and run again; finished downloads and layers are kept",
                details=own,
            ) from error


@contextmanager
def _alarm(end: float) -> Iterator[None]:
    """Raise TimeLimitError in this thread at `end` of the monotonic clock, then restore an earlier timer."""
    began = time.monotonic()
    fired = False

    def ring(number: int, frame: FrameType | None) -> None:
        del number, frame
        nonlocal fired
        fired = True
        raise TimeLimitError("")

    # A signal also interrupts a system call that blocks the main thread, which a timer in a thread could not do.
    handler = signal.signal(signal.SIGALRM, ring)
    before, interval = signal.setitimer(signal.ITIMER_REAL, max(end - began, _LEAST_S))
    try:
        yield
        if fired:  # the work caught the exception, for example as a TimeoutError of its own
            raise TimeLimitError("")
    finally:
        # The timer stops first: without the handler, SIGALRM would end the process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if before:
            signal.setitimer(signal.ITIMER_REAL, max(before - (time.monotonic() - began), _LEAST_S), interval)
