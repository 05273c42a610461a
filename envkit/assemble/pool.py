"""Independent pieces of work on all cores: the largest first, and the first failure ends the rest.

Threads do: inflating, hashing, reading and writing release the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from envkit.ground.process import StoppedError

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Meter:
    """Counts bytes over all threads, tells a reporter, and ends the work when asked, or when `stop` is set."""

    def __init__(self, reporter: Reporter, total: int | None, stop: threading.Event | None = None) -> None:
        self._reporter, self._total = reporter, total
        self._stop = stop
        self._lock = threading.Lock()
        self._done = 0
        self._stopped = False

    def add(self, count: int) -> None:
        """`count` more bytes are done."""
        with self._lock:
            if self._stopped or (self._stop is not None and self._stop.is_set()):
                raise StoppedError
            self._done += count
            self._reporter.advance(self._done, self._total)

    def stop(self) -> None:
        """Make every further `add` raise."""
        with self._lock:
            self._stopped = True


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def run(
    jobs: Sequence[_Job],
    work: Callable[[_Job], _Result],
    *,
    size: Callable[[_Job], int],
    meter: Meter,
    workers: int | None = None,
) -> list[_Result]:
    """`work` of every job, in the order of `jobs`; `work` counts what it does on `meter`.

    Raises:
        Exception: whatever `work` raised, of the first job in order that failed by itself.
    """
    order = sorted(range(len(jobs)), key=lambda index: -size(jobs[index]))
    with ThreadPoolExecutor(workers or cores(), thread_name_prefix="envkit-layer") as pool:
        futures = {index: pool.submit(work, jobs[index]) for index in order}
        try:
            wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:
            failed = not all(future.done() and not future.exception() for future in futures.values())
            if failed:
                meter.stop()
                pool.shutdown(wait=True, cancel_futures=True)
    own = (futures[index] for index in range(len(jobs)) if not futures[index].cancelled())
    for future in own:
        error = future.exception()
        if error is not None and not isinstance(error, StoppedError):
            raise error
    return [futures[index].result() for index in range(len(jobs))]
