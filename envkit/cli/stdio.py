"""The standard streams of this process, made robust: a closed pipe or a closed stream does not stop the work."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from envkit.ground.errors import EnvironmentProblem

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_STDOUT = 1  # its file descriptor
_closed: set[int] = set()  # descriptors that were closed when this process started
_lost: set[int] = set()  # those of them to which something was written


class _Output(io.FileIO):
    """A descriptor that discards its output after its reader has closed the pipe (`| head`).

    The work continues and ends with its own exit code: someone who reads only the first line still wants the image.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        if self.fileno() in _closed:
            _lost.add(self.fileno())
        try:
            return super().write(data)
        except OSError as error:
            # Python flushes the buffers at exit, when no code can handle a second failure.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            error.filename = "standard output" if self.fileno() == _STDOUT else None  # for the message
            raise


def prepare() -> None:
    """Make standard input, output and error usable even if this process was started with some of them closed."""
    for number in range(3):
        _open_closed(number)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it lives as long as the process
    sys.stdout = tolerant(1, sys.stdout)
    sys.stderr = tolerant(2, sys.stderr)


def check_written() -> None:
    """Check at the end of a command that its output was not lost because standard output was closed (`>&-`).

    Raises:
        EnvironmentProblem: output was lost.
    """
    if _STDOUT in _lost:
        raise EnvironmentProblem(
            "standard output is closed, so the output of this command was lost",
            hint="run it again with > FILE, or with > /dev/null to discard the output",
        )


def tolerant(number: int, old: TextIO | None) -> TextIO:
    """Return a text stream on a descriptor, with the encoding of the stream that it replaces."""
    buffer = io.BufferedWriter(_Output(number, "w", closefd=False))
    # None: the descriptor was closed when Python started.
    if not isinstance(old, io.TextIOWrapper):
        return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")
    old.flush()
    return io.TextIOWrapper(
        buffer, encoding=old.encoding, errors=old.errors, newline="\n", line_buffering=old.line_buffering
    )


def _open_closed(number: int) -> None:
    """Open /dev/null on a closed descriptor, because otherwise the next file to be opened would get its number."""
    try:
        os.fstat(number)
    except OSError:
        _closed.add(number)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, number)
        if null != number:  # open(2) returns the lowest free number, which may be this one
            os.close(null)
        os.set_inheritable(number, True)  # as a standard stream; Python opens files for itself only (PEP 446)
