"""How much other work keeps this machine's CPUs busy: for time limits that hold outside of containers.

The payload has its own reading inside (`envkit.smoke.pressure`), because it imports nothing from here. Limit and factor
are the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.host import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY = 0.10
"""Share of the time in which something waited for a CPU; above it the machine is busy."""
STRETCH = 4.0
"""A time limit stretches to at most this multiple of its length."""
_LOAD_FULL = 2.0  # runnable tasks per CPU with which each of them waits half of the time


class Pressure:
    """The pressure on the CPUs since this object was made, from PSI, else from the load average."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._begin, self._before = clock(), self._waited_s()

    def now(self) -> float:
        """Return the share of the last ten seconds in which something waited for a CPU, 0 if unknown."""
        average = self._psi("avg10")
        return self._load() if average is None else min(1.0, average / 100)

    def share(self) -> float:
        """Return the share of the time since the beginning in which something waited for a CPU, 0 if unknown."""
        waited, passed = self._waited_s(), self._clock() - self._begin
        if waited is None or self._before is None:
            return self._load()
        return min(1.0, max(0.0, (waited - self._before) / passed)) if passed > 0 else 0.0

    def busy(self) -> str | None:
        """Return what kept a run from ending in time, such as `CPU pressure 0.97 above 0.10`; None if nothing did."""
        share = self.share()
        return f"CPU pressure {share:.2f} above {BUSY:.2f}" if share > BUSY else None

    def stretched(self, seconds: float) -> float:
        """Return a time limit for a run that begins now: longer if the machine is busy."""
        return seconds * (1.0 + (STRETCH - 1.0) * self.now())

    def _waited_s(self) -> float | None:
        total = self._psi("total")
        return None if total is None else total / 1e6

    def _psi(self, key: str) -> float | None:
        """Return a field of the line `some`: `avg10` in percent, `total` in microseconds."""
        for line in text_of(self._root / "proc/pressure/cpu").splitlines():
            fields = dict(field.partition("=")[::2] for field in line.split()[1:])
            if line.startswith("some") and key in fields:
                try:
                    return float(fields[key])
                except ValueError:
                    return None
        return None

    def _load(self) -> float:
        """Return the share as the load average of the last minute gives it."""
        words = text_of(self._root / "proc/loadavg").split()
        try:
            load = float(words[0])
        except (IndexError, ValueError):
            return 0.0
        return min(1.0, max(0.0, (load / (os.cpu_count() or 1) - 1.0) / (_LOAD_FULL - 1.0)))
