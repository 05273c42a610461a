"""A reporter that measures how long each step of a command takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from envkit.ground.progress import Forwarding

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

LEAST_S = 0.5  # seconds; shorter steps are shown as one row


class StepTimer(Forwarding):
    """A reporter that forwards everything to another one and records how long each step took.

    Args:
        reporter: the reporter that shows the progress.
        clock: returns seconds since any fixed moment.
    """

    def __init__(self, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(reporter)
        self._clock = clock
        self._lock = threading.Lock()
        self._done: list[tuple[str, float]] = []
        self._text, self._began = "begin", clock()

    def step(self, text: str) -> None:
        """End the previous step and begin this one."""
        self._end(text)
        super().step(text)

    def close(self) -> None:
        """End the last step."""
        self._end("end")
        super().close()

    @property
    def current(self) -> str:
        """The current step."""
        return self._text

    def rows(self) -> list[tuple[str, float]]:
        """Return the steps in order with their seconds; short ones as one row, `other`."""
        long = [(text, seconds) for text, seconds in self._done if seconds >= LEAST_S]
        rest = sum(seconds for _, seconds in self._done if seconds < LEAST_S)
        return [*long, ("other", rest)] if rest else long

    def total(self) -> float:
        """Return the sum of all steps in seconds."""
        return sum(seconds for _, seconds in self._done)

    def _end(self, following: str) -> None:
        with self._lock:
            now = self._clock()
            if now > self._began:
                self._done.append((self._text, now - self._began))
            self._text, self._began = following, now
