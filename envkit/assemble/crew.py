"""Threads whose work becomes ready piece by piece; the first failure ends the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from envkit.assemble import pool
from envkit.ground.errors import TimeLimitError
from envkit.ground.process import StoppedError

if TYPE_CHECKING:
    from types import TracebackType

    from envkit.ground.progress import Reporter

Job = TypeVar("Job")
Result = TypeVar("Result")


class Tally(pool.Meter):
    """Bytes done and expected over all threads; ends all work after a failure or at the time limit.

    It is silent until `speak`, so that a download that runs at the same time has the reporter for itself. `watch`
    raises when work elsewhere has failed.
    """

    def __init__(self, reporter: Reporter, deadline: float | None, watch: Callable[[], None] | None = None) -> None:
        super().__init__(reporter, None)
        self._watch = watch
        self._listener, self._deadline = reporter, deadline
        self._guard = threading.Lock()
        self._seen = self._expected = 0
        self._over = self._speaking = False

    def expect(self, count: int) -> None:
        """So many bytes more, or fewer, will be done in all."""
        with self._guard:
            self._expected += count

    def add(self, count: int) -> None:
        """`count` more bytes are done."""
        self.check()
        with self._guard:
            self._seen += count
            if self._speaking:
                self._listener.advance(self._seen, max(self._seen, self._expected))

    def check(self) -> None:
        """End this thread's work where it is in vain.

        Raises:
            StoppedError: another piece failed.
            TimeLimitError: the time limit is reached.
        """
        if self._over:
            raise StoppedError
        if self._watch is not None:
            self._watch()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeLimitError("the build reached its time limit", hint="--timeout SECONDS gives it more")

    def speak(self) -> None:
        """Tell the reporter from here on."""
        self._speaking = True

    def stop(self) -> None:
        """Make every further `add` raise."""
        self._over = True


class Crew(Generic[Job, Result]):
    """Runs `work` for every job that is given to it; use it in a `with` statement."""

    def __init__(self, work: Callable[[Job], Result], tally: Tally, *, workers: int | None = None) -> None:
        self._work, self._tally = work, tally
        self._pool = ThreadPoolExecutor(workers or pool.cores(), thread_name_prefix="envkit-layer")
        self._futures: dict[Job, Future[Result]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._tally.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, Exception):
            self._raise_own(error)

    def give(self, job: Job) -> None:
        """A job that is ready; what is given first is begun first."""
        self._futures[job] = self._pool.submit(self._one, job)

    def check(self) -> None:
        """Raise what ends work that is in vain; see `Tally.check`."""
        self._tally.check()

    def results(self) -> dict[Job, Result]:
        """What came of each job; waits for all.

        Raises:
            Exception: of the first job that failed by itself.
        """
        return {job: future.result() for job, future in self._futures.items()}

    def _one(self, job: Job) -> Result:
        try:
            self._tally.check()
            return self._work(job)
        except BaseException:
            self._tally.stop()
            raise

    def _raise_own(self, error: Exception) -> None:
        """Where work was only stopped, the failure that stopped it is what happened."""
        if not isinstance(error, StoppedError | CancelledError):
            return
        for future in self._futures.values():
            own = None if future.cancelled() else future.exception()
            if own is not None and not isinstance(own, StoppedError):
                raise own
