"""Signals that end a run, as exceptions of the main thread."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from envkit.ground.errors import InterruptedRun

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # a closed terminal, Ctrl-C, and the calling process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_AGAIN_S = 0.02  # after the finalizer that swallowed the signal has returned
_came: list[InterruptedRun] = []
_holding: list[bool] = []  # one item for each `held` that the main thread is in


def came() -> InterruptedRun | None:
    """Return what the last signal since `raise_on` raised, None where none came.

    Python itself turns it into another exception in places (a RuntimeError where it comes during `__set_name__`).
    """
    return _came[0] if _came else None


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let a signal that comes meanwhile raise at the end of the block, whatever else the block raises.

    For steps that have to be whole, like starting a process and noting that it has to be ended. They must be short.
    """
    import threading  # noqa: PLC0415 - most commands end without it

    if threading.current_thread() is not threading.main_thread():
        yield  # signals raise in the main thread only, and it must not wait for this one
        return
    before = came()
    _holding.append(True)
    try:
        yield
    finally:
        _holding.pop()
        if not _holding and (late := came()) is not None and late is not before:
            raise late


def as_usual(*numbers: int) -> None:
    """Let each of these signals end the process, as if nothing had been set."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def raise_on(*numbers: int, noted: Callable[[], object] = lambda: None) -> None:
    """Let each of these signals raise InterruptedRun in the main thread, which has to be this one.

    Only the first of them does; a second one means "now", and ends the process as if nothing had been set.

    Where a signal comes while Python runs a finalizer or the callback of a weak reference, which every import has, the
    exception is dropped there. Such a signal is sent again a moment later.

    Args:
        numbers: of the signals.
        noted: called when one comes.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        noted()
        signal.signal(number, signal.SIG_DFL)
        _came[:] = [InterruptedRun(number)]
        if not _holding:
            raise _came[0]

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, InterruptedRun):
            before(what)
            return
        import threading  # noqa: PLC0415 - hardly ever needed

        number = what.exc_value.exit_code - 128
        signal.signal(number, interrupt)
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()

    _came.clear()
    before = sys.unraisablehook
    if before.__module__ != __name__:
        sys.unraisablehook = dropped
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) ignores it
            signal.signal(number, interrupt)
