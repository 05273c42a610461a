"""Run a task in a background thread.

Its progress is held back until the foreground waits for its result. If either side fails, both stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from envkit.ground.progress import Reporter

Result = TypeVar("Result")
_PATIENCE_S = 0.1  # the longest that a signal waits for the main thread, which handles it


class Quiet:
    """A reporter for the background task: steps become notes and progress is dropped until `forward` is called."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lock = threading.Lock()
        self._step: str | None = None
        self._in_front = False

    def step(self, text: str) -> None:
        """Report the phase, as a note while the foreground task owns the progress bar."""
        with self._lock:
            self._step = text
            if self._in_front:
                self._reporter.step(text)
            else:
                self._reporter.note(f"in parallel: {text}")

    def log(self, line: str) -> None:
        """Pass a line on, once in the foreground."""
        if self._in_front:
            self._reporter.log(line)

    def advance(self, done: int, total: int | None) -> None:
        """Pass progress on, once in the foreground."""
        if self._in_front:
            self._reporter.advance(done, total)

    def note(self, text: str) -> None:
        """Pass a note on."""
        self._reporter.note(text)

    def close(self) -> None:
        """Do nothing: the foreground task closes the progress bar."""

    def forward(self) -> None:
        """Take over the progress bar."""
        with self._lock:
            self._in_front = True
            if self._step is not None:
                self._reporter.step(self._step)


class Background(Generic[Result]):
    """Runs `work` in its own thread; the end of the `with` statement stops it.

    Args:
        work: called with a reporter and an event; it ends soon after the event is set.
        reporter: the foreground task's.
    """

    def __init__(self, work: Callable[[Reporter, threading.Event], Result], reporter: Reporter) -> None:
        self._work = work
        self._quiet = Quiet(reporter)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="envkit-background", daemon=True)
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error of the work if it has failed."""
        if self._error is not None:
            raise self._error

    def wait(self, check: Callable[[], object]) -> Result:
        """Wait for the result on a thread that does not own the progress bar; `check` raises to stop.

        Raises:
            Exception: whatever the work raised.
        """
        while self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
            check()
        self.check()
        return self._results[0]

    def result(self) -> Result:
        """Wait for the result while its progress is shown.

        Raises:
            Exception: whatever the work raised.
        """
        if self._thread.is_alive():
            self._quiet.forward()
        while self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
        self.check()
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._quiet, self._stop))
        except BaseException as error:  # noqa: BLE001 - raised again by `check` and `result`
            self._error = error
