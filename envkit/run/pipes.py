"""A child process heard on both pipes at once, until it ends, says too much, or its time is up."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING

from envkit.ground.text import Lines
from envkit.run.cage import END_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from envkit.ground.progress import Reporter
    from envkit.run.cage import Output

_TICK_S = 0.2  # how soon a full output or a time limit is noticed
# Seconds for the rest of the output. A process that the command left behind can hold the pipes open for ever.
_DRAIN_S = 5.0


def collect(
    process: subprocess.Popen[bytes],
    output: Output,
    reporter: Reporter,
    *,
    deadline: float,
    kill: Callable[[], None],
) -> bool:
    """Fill `output`; True when the deadline (of `time.monotonic()`) came before the end.

    When the output is complete, the deadline is `cage.END_S` later at most.

    `kill` is called when the process has to go: at the deadline, when the output's limit is reached, and when an
    exception (a signal's, too) passes through.
    """
    assert process.stdout is not None
    assert process.stderr is not None
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
    """Read a stream to its end; with a reporter it is stderr, and its lines are passed on."""
    lines = Lines()
    with contextlib.suppress(ValueError, OSError):  # closed from the other side
        while piece := source.read1(1 << 16):  # type: ignore[attr-defined]  # a pipe's buffered reader has it
            # Read on past the limit: a full pipe would delay the kill.
            if output.take(error=reporter is not None, piece=piece) and reporter is not None:
                for line in lines.feed(piece.decode(errors="replace")):
                    reporter.log(line)
