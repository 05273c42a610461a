"""Read both pipes of a child process until it ends, writes too much, or reaches its time limit."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING

from envkit.ground.text import Lines
from envkit.run.containers import END_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from envkit.ground.progress import Reporter
    from envkit.run.containers import Output

_TICK_S = 0.2  # how soon a full output or a time limit is noticed
# Seconds to wait for the rest of the output. A process that the command left behind can keep the pipes open forever.
_DRAIN_S = 5.0


def collect(
    process: subprocess.Popen[bytes],
    output: Output,
    reporter: Reporter,
    *,
    deadline: float,
    kill: Callable[[], None],
) -> bool:
    """Fill `output` and return whether the deadline (on `time.monotonic()`) came before the process ended.

    Once the output is complete, the process has at most `cage.END_S` left to end. `kill` is called at the deadline,
    when the output exceeds its limit, and when an exception (such as a signal's) passes through.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    # Daemons, because a process that the command left behind can keep a pipe open forever.
    readers = [
        threading.Thread(target=_drain, args=(process.stdout, output, None), daemon=True),
        threading.Thread(target=_drain, args=(process.stderr, output, reporter), daemon=True),
    ]
    for reader in readers:
        reader.start()
    ended = complete = False
    try:
        while not ended and not output.cut and time.monotonic() < deadline:
            if output.complete and not complete:
                complete, deadline = True, min(deadline, time.monotonic() + END_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_TICK_S)
                ended = True
    finally:
        if not ended:
            kill()
    process.wait()
    for reader in readers:
        reader.join(timeout=_DRAIN_S)
    return not ended and not output.cut


def _drain(source: IO[bytes], output: Output, reporter: Reporter | None) -> None:
    """Read a stream to its end. With a reporter the stream is stderr, and its lines are passed on."""
    lines = Lines()
    with contextlib.suppress(ValueError, OSError):  # the pipe was closed while it was read
        while piece := source.read1(1 << 16):  # type: ignore[attr-defined]  # a pipe's buffered reader has it
            # Keep reading past the limit: a process that is blocked on a full pipe would not end.
            if output.take(error=reporter is not None, piece=piece) and reporter is not None:
                for line in lines.feed(piece.decode(errors="replace")):
                    reporter.log(line)
