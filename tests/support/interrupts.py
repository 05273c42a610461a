"""A signal that arrives when a command is known to run, not after some time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from envkit.ground.errors import InterruptedRun
from tests.support.heard import Heard

# Not SIGINT: one that came too late would end the whole run of the tests.
_SIGNAL = signal.SIGALRM


@dataclass(kw_only=True)
class _Signals(Heard):
    """Sends the signal to the main thread once, when a line ends with a word."""

    word: str
    waits: bool = True

    def log(self, line: str) -> None:
        super().log(line)
        if self.waits and line.rstrip().endswith(self.word):
            self.waits = False
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)


@contextmanager
def interrupted_at(word: str) -> Iterator[Heard]:
    """Give a reporter; InterruptedRun is raised in the main thread, as at SIGINT, when a line ends with `word`."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        raise InterruptedRun(number)

    before = signal.signal(_SIGNAL, stop)
    heard = _Signals(word=word)
    try:
        yield heard
    finally:
        heard.waits = False
        signal.signal(_SIGNAL, before)
