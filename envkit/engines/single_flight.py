"""Let only one process build what several need; the others wait and then use the result.

    <folder>/<key>.making   locked by the process that builds it

The kernel releases locks when a process ends, so nothing waits for a dead process. Two rules prevent deadlocks: a
process that holds a key while it waits for another locks keys in sorted order, and a process that locked some keys
without waiting finishes its work and releases them before it waits for the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from envkit.ground import store

_POLL_S = 0.05  # flock has no time limit, and a signal has to end the wait


class Flights:
    """Locks on keys, as files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def beside(cls, layers: Path) -> Self:
        """Return the locks of a layer cache, which also removes the files that killed runs leave."""
        return cls(layers / "new")

    @contextlib.contextmanager
    def free(self, keys: Iterable[str]) -> Iterator[frozenset[str]]:
        """Lock and return the keys that no other process holds, until the block ends."""
        with contextlib.ExitStack() as locks:
            taken = set()
            for key in keys:
                descriptor = self._take(key)
                if descriptor is not None:
                    locks.callback(self._give, key, descriptor)
                    taken.add(key)
            yield frozenset(taken)

    @contextlib.contextmanager
    def all(self, keys: Iterable[str], check: Callable[[], object]) -> Iterator[None]:
        """Lock all keys as soon as they are free; `check` is called while waiting and may raise."""
        with contextlib.ExitStack() as locks:
            for key in sorted(set(keys)):
                while (descriptor := self._take(key)) is None:
                    check()
                    time.sleep(_POLL_S)
                locks.callback(self._give, key, descriptor)
            yield

    def wait(self, key: str, check: Callable[[], object]) -> None:
        """Wait until the key is free; `check` is called while waiting and may raise."""
        with self.all([key], check):
            return

    def _path(self, key: str) -> Path:
        # A hash, because keys contain slashes: `push sha256:... to host/name`.
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.making"

    def _take(self, key: str) -> int | None:
        """Lock a key and return the descriptor, None if another process has the lock."""
        return store.lock_file(self._path(key))

    def _give(self, key: str, descriptor: int) -> None:
        # While it is still locked: after that, the file may be another process's.
        with contextlib.suppress(OSError):
            self._path(key).unlink()
        os.close(descriptor)
