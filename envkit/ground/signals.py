"""Turn signals that end a run into exceptions of the main thread."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from envkit.ground.errors import InterruptedRun

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # sent by a closed terminal, Ctrl-C, and kill(1)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_RESEND_S = 0.02  # by then, the finalizer in which the exception was dropped has returned
_received: list[InterruptedRun] = []  # at most one
_deferring: list[bool] = []  # one item for each `deferred` block that the main thread is in


def received() -> InterruptedRun | None:
    """Return the exception of the last signal since `raise_on`, None if there was no signal.

    Python sometimes replaces the exception by another one (by a RuntimeError if it is raised in `__set_name__`).
    """
    return _received[0] if _received else None


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delay the exception of a signal until the end of the block, where it replaces any other exception.

    It is for short steps that must not be interrupted, such as starting a process and registering it to be ended.
    """
    import threading  # noqa: PLC0415 - most commands do not need it

    if threading.current_thread() is not threading.main_thread():
        yield  # signals raise only in the main thread, which must not wait for this one
        return
    before = received()
    _deferring.append(True)
    try:
        yield
    finally:
        _deferring.pop()
        if not _deferring and (late := received()) is not None and late is not before:
            raise late


def restore_default(*numbers: int) -> None:
    """Restore the default action of each of these signals, which ends the process."""
    for number in numbers:
        # A signal that nohup(1) or the parent ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def raise_on(*numbers: int, on_signal: Callable[[], object] = lambda: None) -> None:
    """Let each of these signals raise InterruptedRun in the main thread; call it from that thread.

    Only the first signal does. A second one means that the user does not want to wait, so it ends the process by the
    default action.

    Python drops an exception that is raised in a finalizer or in the callback of a weak reference, which every import
    runs. A signal that arrives there is sent again a moment later.

    Args:
        numbers: of the signals.
        on_signal: called when a signal arrives.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        on_signal()
        signal.signal(number, signal.SIG_DFL)
        _received[:] = [InterruptedRun(number)]
        if not _deferring:
            raise _received[0]

    def resend(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, InterruptedRun):
            before(dropped)
            return
        import threading  # noqa: PLC0415 - rarely needed

        number = dropped.exc_value.exit_code - 128
        # By now the handler has restored the default action, which would end the process.
        signal.signal(number, interrupt)
        threading.Timer(_RESEND_S, os.kill, (os.getpid(), number)).start()

    _received.clear()
    before = sys.unraisablehook
    # A second call must not make the hook call itself: `__main__` and the CLI both set the signals.
    if before.__module__ != __name__:
        sys.unraisablehook = resend
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) ignores it
            signal.signal(number, interrupt)
