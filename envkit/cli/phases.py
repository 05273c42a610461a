"""Where the time of long work went, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

LEAST_S = 0.5  # shorter steps are shown together


class Phases:
    """A reporter that passes everything on and remembers how long each step took.

    Args:
        reporter: who draws.
        clock: seconds from any start on.
    """

    def __init__(self, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._reporter, self._clock = reporter, clock
        self._lock = threading.Lock()
        self._done: list[tuple[str, float]] = []
        self._text, self._began = "begin", clock()

    def step(self, text: str) -> None:
        """End the step before."""
        self._end(text)
        self._reporter.step(text)

    def log(self, line: str) -> None:
        """Pass the line on."""
        self._reporter.log(line)

    def advance(self, done: int, total: int | None) -> None:
        """Pass the progress on."""
        self._reporter.advance(done, total)

    def note(self, text: str) -> None:
        """Pass the remark on."""
        self._reporter.note(text)

    def close(self) -> None:
        """End the last step."""
        self._end("end")
        self._reporter.close()

    @property
    def current(self) -> str:
        """The step that is going on."""
        return self._text

    def rows(self) -> list[tuple[str, float]]:
        """Steps in their order with their seconds; short ones as one row, `other`."""
        long = [(text, seconds) for text, seconds in self._done if seconds >= LEAST_S]
        rest = sum(seconds for _, seconds in self._done if seconds < LEAST_S)
        return [*long, ("other", rest)] if rest else long

    def total(self) -> float:
        """Seconds in all."""
        return sum(seconds for _, seconds in self._done)

    def _end(self, following: str) -> None:
        with self._lock:
            now = self._clock()
            if now > self._began:
                self._done.append((self._text, now - self._began))
            self._text, self._began = following, now
