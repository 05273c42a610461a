"""The streams of this process: a reader that goes away or a stream that is closed changes nothing about the work."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from envkit.ground.errors import EnvironmentProblem

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_STDOUT = 1  # its file descriptor
_closed: set[int] = set()  # descriptors that were closed when this process began
_lost: set[int] = set()  # of them: something was written there


class _Output(io.FileIO):
    """A descriptor whose reader may go away (`| head`): what is written from then on is dropped.

    The work continues and ends with its own exit code: a reader of one line still wants the image or the verdict.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        if self.fileno() in _closed:
            _lost.add(self.fileno())
        try:
            return super().write(data)
        except OSError as error:
            # What is left in buffers is written at the very end, when no code can handle a failure any more.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            error.filename = "standard output" if self.fileno() == _STDOUT else None  # for the message
            raise


def prepare() -> None:
    """Make standard input, output and error usable, whatever this process was started with."""
    for number in range(3):
        _open_closed(number)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it lives as long as the process
    sys.stdout = tolerant(1, sys.stdout)
    sys.stderr = tolerant(2, sys.stderr)


def check_written() -> None:
    """Fail when the command's answer went nowhere because standard output was closed (`>&-`); call it at the end.

    Raises:
        EnvironmentProblem: it did.
    """
    if _STDOUT in _lost:
        raise EnvironmentProblem(
            "standard output is closed, so what this command prints was lost",
            hint="run it again with > FILE, or with > /dev/null to discard the output",
        )


def tolerant(number: int, old: TextIO | None) -> TextIO:
    """A text stream on a descriptor, with the encoding of the one that it replaces."""
    buffer = io.BufferedWriter(_Output(number, "w", closefd=False))
    if not isinstance(old, io.TextIOWrapper):
        return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")
    old.flush()
    return io.TextIOWrapper(
        buffer, encoding=old.encoding, errors=old.errors, newline="\n", line_buffering=old.line_buffering
    )


def _open_closed(number: int) -> None:
    """Put /dev/null where a descriptor is closed: the next file that is opened would get its number."""
    try:
        os.fstat(number)
    except OSError:
        _closed.add(number)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, number)
        if null != number:
            os.close(null)
        os.set_inheritable(number, True)
