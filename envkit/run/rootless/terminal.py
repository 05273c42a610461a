"""Streams of a container that a person uses: its own terminal, and signals that are passed on.

A container never gets the caller's terminal itself: with it, it could type into the caller's shell (TIOCSTI).
Source: pty(7), tty_ioctl(4), ioctl_tty(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PIECE = 1 << 16
_GLANCE_S = 0.1  # how soon the command's end is noticed


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pseudo terminal: the caller's end and the container's."""

    own: int
    theirs: int

    def resize(self) -> None:
        """Give it the size of the caller's terminal."""
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(sys.stdin.fileno(), termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.own, termios.TIOCSWINSZ, size)

    def carry(self, process: subprocess.Popen[bytes]) -> None:
        """Carry bytes both ways until the process has ended and all that it wrote is shown."""
        typed, shown = sys.stdin.fileno(), sys.stdout.fileno()
        before = termios.tcgetattr(typed)
        tty.setraw(typed, termios.TCSADRAIN)  # what was typed already is kept
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(typed, selectors.EVENT_READ)
                ready.register(self.own, selectors.EVENT_READ)
                while self._step(ready, typed, shown) or process.poll() is None:
                    pass
        finally:
            termios.tcsetattr(typed, termios.TCSADRAIN, before)

    def _step(self, ready: selectors.BaseSelector, typed: int, shown: int) -> bool:
        """Carry what is there; False when nothing came for a moment."""
        readable = [key.fd for key, _ in ready.select(_GLANCE_S)]
        if typed in readable:
            piece = os.read(typed, _PIECE)
            if piece:
                _write(self.own, piece)
            else:
                ready.unregister(typed)
        if self.own in readable:
            try:
                piece = os.read(self.own, _PIECE)
            except OSError as error:  # the last process that had the other end is gone
                if error.errno != errno.EIO:
                    raise
                return False
            _write(shown, piece)
        return bool(readable)


@contextmanager
def new_terminal() -> Iterator[Terminal]:
    """A terminal of the size of the caller's; both ends are closed at the end."""
    own, theirs = os.openpty()
    made = Terminal(own, theirs)
    made.resize()
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: made.resize())
    try:
        yield made
    finally:
        signal.signal(signal.SIGWINCH, before)
        for end in (own, theirs):
            with contextlib.suppress(OSError):
                os.close(end)


@contextmanager
def passing_on(send: Callable[[int], None]) -> Iterator[None]:
    """Hand each signal that comes to `send`, which passes it on, instead of ending this process."""
    before = {number: signal.getsignal(number) for number in PASSED_ON}
    for number in PASSED_ON:
        if before[number] is not signal.SIG_IGN:  # as nohup(1) leaves it
            signal.signal(number, lambda came, _frame: send(came))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lead_terminal() -> None:
    """Make standard input the controlling terminal; called in a child that leads a session of its own."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
