"""SHA-256 on a thread of its own, so that one big layer keeps two cores busy."""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Protocol

_DEPTH = 16  # pieces of at most 256 KiB that wait to be hashed


class Digest(Protocol):
    """A running SHA-256."""

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """The digest of all of them."""


class Lane:
    """A digest that another thread computes. `close` it whatever happens."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_DEPTH)
        self._thread = threading.Thread(target=self._run, name="envkit-sha256", daemon=True)
        self._thread.start()

    def update(self, data: bytes, /) -> None:
        """Take the next bytes, which must not change any more."""
        self._waiting.put(data)

    def hexdigest(self) -> str:
        """The digest of all bytes; waits for the thread."""
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (data := self._waiting.get()) is not None:
            self._digest.update(data)
