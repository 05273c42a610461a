"""Read a blocking iterator in a separate thread, so that time limits and signals take effect at once."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

Item = TypeVar("Item")
_QUEUED = 256  # items between the threads, so that memory use stays constant when an engine writes faster than we read


class Stream(Generic[Item]):
    """Iterates over `source()`, which runs in a thread; `cut` must make a blocked read return.

    Iteration raises TimeoutError `limit_s` seconds after the stream was created, and whatever the source raises.
    Leaving the `with` block cuts the source; a thread that stays blocked anyway is left behind as a daemon.
    """

    def __init__(self, source: Callable[[], Iterable[Item]], cut: Callable[[], None], limit_s: float | None) -> None:
        self._source, self._cut = source, cut
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._items: queue.Queue[tuple[str, Item | None, Exception | None]] = queue.Queue(maxsize=_QUEUED)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="envkit-stream", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._cut()
        self._thread.join(timeout=2.0)

    def __iter__(self) -> Iterator[Item]:
        while True:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            try:
                kind, item, error = self._items.get(timeout=left)
            except queue.Empty:
                raise TimeoutError from None
            if kind == "end":
                return
            if error is not None:
                raise error
            assert item is not None
            yield item

    def within(self, limit_s: float) -> None:
        """Shorten the time limit to at most this many seconds from now."""
        deadline = time.monotonic() + limit_s
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _read(self) -> None:
        try:
            for item in self._source():
                if not self._put(("item", item, None)):
                    return
        except Exception as error:  # noqa: BLE001 - it is raised again in the thread that iterates
            self._put(("error", None, error))
        else:
            self._put(("end", None, None))

    def _put(self, entry: tuple[str, Item | None, Exception | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._items.put(entry, timeout=0.5)  # a time limit, so that a closed stream is noticed
            except queue.Full:
                continue
            return True
        return False
