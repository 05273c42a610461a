"""The child process of `envkit.fleet.local`: `python -m envkit.fleet.worker FD` runs functions sent over a socket.

It ends when the socket is closed, also in the middle of a task, because the parent process may have died.
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

_EVERY_S = 0.1  # between progress events: on a cluster each one crosses the network
_ended = threading.Event()


def main() -> int:
    """Work until the other end of the socket closes."""
    # SIGINT is not set to ignored although Ctrl-C never arrives here: programs that a build starts would inherit that.
    signals.raise_on(signal.SIGTERM, signal.SIGINT, on_signal=_ended.set)
    connection = Connection(int(sys.argv[1]))
    sending = threading.Lock()  # events may come from threads of a task, and two messages must not mix
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    busy, closed = threading.Event(), threading.Event()

    def receive() -> None:
        """Receive jobs in a thread, so that a closed socket is noticed during a task."""
        job: Any = ()
        while job is not None:
            try:
                # Unpickling is safe here: only the parent process has the other end of the socket.
                job = connection.recv()
            except (EOFError, OSError):
                job = None
                closed.set()
            except Exception as error:  # noqa: BLE001 - unpickling failed; the caller must get an answer
                job = error
            jobs.put(job)
        if busy.is_set():
            # Only a signal interrupts the task, which runs in the main thread; it can clean up and end.
            os.kill(os.getpid(), signal.SIGTERM)

    def send(kind: str, value: object) -> None:
        with sending:
            connection.send((kind, value))

    threading.Thread(target=receive, name="envkit-socket", daemon=True).start()
    try:
        while (job := jobs.get()) is not None:
            if isinstance(job, Exception):
                send("raised", _portable(job))
                continue
            fn, args, kwargs = job
            if getattr(fn, "takes_reporter", False):
                kwargs = {"reporter": _SocketReporter(args[0].name, send), **kwargs}
            busy.set()
            if closed.is_set():  # closed before `busy` was set, so no SIGTERM was sent
                break
            try:
                result = fn(*args, **kwargs)
                if _ended.is_set():  # the task turned the signal into a result; this process ends anyway
                    break
                send("result", result)
            except Exception as error:  # noqa: BLE001 - sent to the caller
                send("raised", _portable(error))
            busy.clear()
    except (InterruptedRun, ConnectionError):
        return 128 + signal.SIGTERM
    return 128 + signal.SIGTERM if _ended.is_set() else 0


class _SocketReporter(Silent):
    """A reporter that sends events to the parent; progress at most ten times a second."""

    def __init__(self, name: str, send: Any) -> None:
        self._name, self._send = name, send
        self._sent_at = 0.0

    def step(self, text: str) -> None:
        """Send the phase."""
        self._event("step", (text,))

    def advance(self, done: int, total: int | None) -> None:
        """Send the progress."""
        now = time.monotonic()
        if now - self._sent_at >= _EVERY_S or done == total:
            self._sent_at = now
            self._event("advance", (done, total))

    def note(self, text: str) -> None:
        """Send a remark."""
        self._event("note", (text,))

    def _event(self, method: str, arguments: tuple[object, ...]) -> None:
        try:
            self._send("event", (self._name, method, arguments))
        except OSError:  # the parent is gone; `receive` ends this process
            return


def _portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with the traceback as a note."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled by this process
    except Exception:  # noqa: BLE001 - some exceptions need arguments that are not in their `args`
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(text)
    return error


if __name__ == "__main__":
    sys.exit(main())
