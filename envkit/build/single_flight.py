"""One maker at a time for what several builds need: the others wait for it and take what it made.

    <folder>/<key>.making   locked by the maker

The kernel releases locks when a process ends, so nothing waits for a dead process. Two rules prevent a deadlock: a
process that holds a key and waits for another one locks keys in sorted order, and one that took some keys without
waiting finishes and releases them before it waits for the rest.
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

_LOOK_S = 0.05  # flock has no time limit, and a signal has to end the wait


class Flights:
    """The keys of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def beside(cls, layers: Path) -> Self:
        """Return those of the builds that use one layer cache; what killed runs leave, the cache sweeps away."""
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
                    time.sleep(_LOOK_S)
                locks.callback(self._give, key, descriptor)
            yield

    def wait(self, key: str, check: Callable[[], object]) -> None:
        """Wait until the key is free; `check` is called meanwhile and may raise."""
        with self.all([key], check):
            return

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.making"

    def _take(self, key: str) -> int | None:
        """Return a descriptor with the lock, None where another holds it."""
        return store.lock_file(self._path(key))

    def _give(self, key: str, descriptor: int) -> None:
        with contextlib.suppress(OSError):
            self._path(key).unlink()
        os.close(descriptor)
