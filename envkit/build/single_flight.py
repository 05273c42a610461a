"""One maker at a time for what several builds need: the others wait for it and take what it made.

    <folder>/<key>.making   locked by the maker

Locks are the kernel's, so nobody ever waits for a process that is dead. Two rules keep builds from waiting for each
other in a circle: whoever holds a key and waits for another one asks for keys in their sorted order, and whoever took
some keys without waiting works them off and gives them back before it waits for the rest.
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

_LOOK_S = 0.05


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
        """Give those of the keys that nobody else holds; they are this caller's until the block ends."""
        with contextlib.ExitStack() as held:
            taken = set()
            for key in keys:
                descriptor = self._take(key)
                if descriptor is not None:
                    held.callback(self._give, key, descriptor)
                    taken.add(key)
            yield frozenset(taken)

    @contextlib.contextmanager
    def all(self, keys: Iterable[str], check: Callable[[], object]) -> Iterator[None]:
        """Give all of the keys, as soon as nobody else holds them; `check` is called while waiting and may raise."""
        with contextlib.ExitStack() as held:
            for key in sorted(set(keys)):
                while (descriptor := self._take(key)) is None:
                    check()
                    time.sleep(_LOOK_S)
                held.callback(self._give, key, descriptor)
            yield

    def wait(self, key: str, check: Callable[[], object]) -> None:
        """Until nobody holds the key; `check` is called meanwhile and may raise."""
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
