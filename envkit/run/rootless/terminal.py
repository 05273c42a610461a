"""The terminal and the signals of an interactive container.

A container never gets the caller's own terminal: with it, it could type into the caller's shell (TIOCSTI).
Source: pty(7), tty_ioctl(4), ioctl_tty(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import selectors
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PIECE = 1 << 16
_POLL_S = 0.1  # how soon the command's end is noticed


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pseudoterminal: the caller's end (`own`) and the container's (`theirs`)."""

    own: int
    theirs: int

    def resize(self) -> None:
        """Give it the size of the caller's terminal."""
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(sys.stdin.fileno(), termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.own, termios.TIOCSWINSZ, size)

    def carry(self, process: subprocess.Popen[bytes]) -> None:
        """Copy bytes both ways until the process has ended and all of its output is shown."""
        typed, shown = sys.stdin.fileno(), sys.stdout.fileno()
        before = termios.tcgetattr(typed)
        tty.setraw(typed, termios.TCSADRAIN)  # the default, TCSAFLUSH, would discard what was typed already
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(typed, selectors.EVENT_READ)
                ready.register(self.own, selectors.EVENT_READ)
                # Copied first: output that was written just before the end is still shown.
                while self._step(ready, typed, shown) or process.poll() is None:
                    pass
        finally:
            termios.tcsetattr(typed, termios.TCSADRAIN, before)

    def unread(self) -> bytes:
        """Return what a container that has ended wrote; `theirs` must be closed here."""
        data = b""
        with contextlib.suppress(OSError):  # EIO: no process has the other end open any more
            while select.select([self.own], [], [], _POLL_S)[0]:
                data += os.read(self.own, _PIECE)
        return data

    def _step(self, ready: selectors.BaseSelector, typed: int, shown: int) -> bool:
        """Copy what can be read; return False when there was nothing."""
        # With a limit, because a process that the command left behind may keep the other end open.
        readable = [key.fd for key, _ in ready.select(_POLL_S)]
        if typed in readable:
            piece = os.read(typed, _PIECE)
            if piece:
                _write(self.own, piece)
            else:
                ready.unregister(typed)
        if self.own in readable:
            try:
                piece = os.read(self.own, _PIECE)
            except OSError as error:  # EIO: no process has the other end open any more
                if error.errno != errno.EIO:
                    raise
                return False
            _write(shown, piece)
        return bool(readable)


@contextmanager
def new_terminal() -> Iterator[Terminal]:
    """Open a terminal that follows the size of the caller's; close both ends on exit."""
    own, theirs = os.openpty()
    terminal = Terminal(own, theirs)
    terminal.resize()
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: terminal.resize())
    try:
        yield terminal
    finally:
        signal.signal(signal.SIGWINCH, before)
        for end in (own, theirs):
            with contextlib.suppress(OSError):
                os.close(end)


@contextmanager
def forwarded_signals(send: Callable[[int], None]) -> Iterator[None]:
    """Pass each signal to `send` instead of letting it end this process."""
    before = {number: signal.getsignal(number) for number in FORWARDED}
    for number in FORWARDED:
        if before[number] is not signal.SIG_IGN:  # as nohup(1) leaves SIGHUP
            signal.signal(number, lambda received, _frame: send(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lead_terminal() -> None:
    """Make standard input the controlling terminal. Call it in a child that leads a session of its own."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
