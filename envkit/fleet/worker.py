"""The child process of `envkit.fleet.local`: `python -m envkit.fleet.worker FD` takes functions from a socket.

It ends when the socket does, and in the middle of its work when the process at the other end is gone.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from envkit.ground import signals
from envkit.ground.errors import InterruptedRun
from envkit.ground.progress import Silent

_EVERY_S = 0.1  # each message crosses the network
_ended = threading.Event()


def main() -> int:
    """Work until the other end of the socket closes."""
    # Not ignored, though Ctrl-C never comes here: what is ignored stays so in every program that a build starts.
    signals.raise_on(signal.SIGTERM, signal.SIGINT, on_signal=_ended.set)
    connection = Connection(int(sys.argv[1]))
    sending = threading.Lock()
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    busy, alone = threading.Event(), threading.Event()

    def take() -> None:
        """Notice at once when the other end closes, while this process works."""
        job: Any = ()
        while job is not None:
            try:
                job = connection.recv()
            except (EOFError, OSError):
                job = None
                alone.set()
            except Exception as error:  # noqa: BLE001 - the task cannot be read here, and its caller waits
                job = error
            asked.put(job)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def say(kind: str, value: object) -> None:
        with sending:
            connection.send((kind, value))

    threading.Thread(target=take, name="envkit-socket", daemon=True).start()
    try:
        while (job := asked.get()) is not None:
            if isinstance(job, Exception):
                say("raised", _portable(job))
                continue
            fn, args, kwargs = job
            if getattr(fn, "takes_reporter", False):
                kwargs = {"reporter": _Teller(args[0].name, say), **kwargs}
            busy.set()
            if alone.is_set():  # the other end may be gone before the work that it gave has begun
                break
            try:
                result = fn(*args, **kwargs)
                if _ended.is_set():  # the work that was ended made something of it; this process ends all the same
                    break
                say("result", result)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                say("raised", _portable(error))
            busy.clear()
    except (InterruptedRun, ConnectionError):
        return 128 + signal.SIGTERM
    return 128 + signal.SIGTERM if _ended.is_set() else 0


class _Teller(Silent):
    """A reporter that sends what it hears to the parent; an advance at most ten times a second."""

    def __init__(self, name: str, say: Any) -> None:
        self._name, self._say = name, say
        self._told = 0.0

    def step(self, text: str) -> None:
        """Send the phase."""
        self._tell("step", (text,))

    def advance(self, done: int, total: int | None) -> None:
        """Send how far it is."""
        now = time.monotonic()
        if now - self._told >= _EVERY_S or done == total:
            self._told = now
            self._tell("advance", (done, total))

    def note(self, text: str) -> None:
        """Send a remark."""
        self._tell("note", (text,))

    def close(self) -> None:
        """Leave closing to the parent, which draws."""

    def _tell(self, method: str, arguments: tuple[object, ...]) -> None:
        try:
            self._say("event", (self._name, method, arguments))
        except OSError:  # the other end is gone; the socket's thread ends this process
            return


def _portable(error: Exception) -> Exception:
    """An exception that survives the way to another process, with its traceback as a note."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - this very process wrote it
    except Exception:  # noqa: BLE001 - some need arguments that their own `args` do not hold
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(text)
    return error


if __name__ == "__main__":
    sys.exit(main())
