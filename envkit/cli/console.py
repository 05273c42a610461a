"""Messages on stderr, and the progress of long work: a bar on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

import click

from envkit.cli.declare import verbosity
from envkit.ground.progress import Forwarding, Reporter, Silent
from envkit.ground.sizes import shown_pair, shown_size
from envkit.ground.text import folded, neutral

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress, Task, TaskID

_WIDEST = 120  # columns; longer lines are hard to read
_PROSE = ("note: ", "warning: ", "skipped: ")
LEAST_S = 0.5  # seconds; shorter steps are shown as one row
MODES = ("auto", "plain", "quiet", "json")


def reporter_for(mode: str, *, verbose: bool = False) -> Reporter:
    """Return the reporter for `--progress MODE`; auto is a bar on a terminal and plain lines elsewhere."""
    if mode == "quiet":
        return Silent()
    if mode == "json":
        return JsonLines(sys.stderr)
    # TERM=dumb: a terminal that cannot move the cursor.
    if mode == "auto" and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Bar(verbose=verbose)
    return Plain(sys.stderr)


def color(stream: TextIO | None = None) -> bool:
    """Return whether to color a stream (default: stdout): a terminal with colors, and NO_COLOR is unset or empty."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def columns(stream: TextIO) -> int | None:
    """Return the width for text on a stream: the terminal's, at most 120; None if it is not a terminal."""
    import shutil

    return min(shutil.get_terminal_size((80, 24)).columns, _WIDEST) if stream.isatty() else None


def show(line: str, *, err: bool = False) -> None:
    """Print a line of text to stdout or stderr, folded to the terminal."""
    width = columns(sys.stderr if err else sys.stdout)
    for part in folded(line, width) if width else [line]:
        click.echo(part, err=err)


def tell(text: str) -> None:
    """Print a message to stderr unless `-q` is given. Notes and warnings are folded; other lines stay easy to copy."""
    if verbosity().quiet:
        return
    if text.startswith(_PROSE):
        show(text, err=True)
    else:
        click.echo(text, err=True)


_BYTES_FROM = 1 << 20  # from here on a count is shown as bytes, because no build has so many steps
_PLAIN_EVERY_S = 10.0  # plain lines of progress stay in the log of a CI system, so they are rare


def amount(done: int, total: int | None, rate: float | None) -> str:
    """Return the progress as text: a count of steps, or MB for bytes, with `rate` (bytes per second) if known."""
    if max(done, total or 0) < _BYTES_FROM:
        return f"{done}/{total}" if total else f"{done}"
    text = shown_pair(done, total, "MB") if total else shown_size(done, "MB")
    return text if not rate else f"{text}, {shown_size(rate, 'MB')}/s"


class Plain:
    """One line per event on stderr: for logs and CI.

    Args:
        stream: the stream to write to.
        clock: returns seconds since any fixed moment.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._start = self._step = self._last_line = clock()

    def step(self, text: str) -> None:
        """Print the phase with the seconds since the start."""
        self._step = self._last_line = self._clock()
        self._write(f"[{self._step - self._start:6.1f}s] {neutral(text)}")

    def log(self, line: str) -> None:
        """Print the line, indented."""
        self._write(f"  | {neutral(line)}")

    def advance(self, done: int, total: int | None) -> None:
        """Print how many bytes are done, at most every ten seconds; counts of steps are only visible as log lines."""
        now = self._clock()
        if max(done, total or 0) < _BYTES_FROM or now - self._last_line < _PLAIN_EVERY_S:
            return
        self._last_line = now
        self._write(f"[{now - self._start:6.1f}s]   {amount(done, total, done / (now - self._step))}")

    def note(self, text: str) -> None:
        """Print a note."""
        self._write(f"note: {neutral(text)}")

    def close(self) -> None:
        """Do nothing."""

    def _write(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except (OSError, ValueError):  # the reader of stderr is gone, which must not stop the work
            return


class JsonLines:
    """One JSON object per event on stderr: for programs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def step(self, text: str) -> None:
        """Emit {"event": "step"}."""
        self._emit("step", text=neutral(text))

    def log(self, line: str) -> None:
        """Emit {"event": "log"}."""
        self._emit("log", line=neutral(line))

    def advance(self, done: int, total: int | None) -> None:
        """Emit {"event": "progress"}."""
        self._emit("progress", done=done, total=total)

    def note(self, text: str) -> None:
        """Emit {"event": "note"}."""
        self._emit("note", text=neutral(text))

    def close(self) -> None:
        """Emit nothing: the next step event implies that this step has ended."""

    def _emit(self, event: str, **fields: object) -> None:
        try:
            print(json.dumps({"event": event, **fields}), file=self._stream, flush=True)
        except (OSError, ValueError):
            return  # as in `Plain`


class Bar:
    """A bar for the current step and, below it, the last log line."""

    def __init__(self, *, verbose: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column
        from rich.text import Text

        class Amount(ProgressColumn):
            """The progress of the step and its rate."""

            def render(self, task: Task) -> Text:
                total = None if task.total is None else int(task.total)
                return Text(amount(int(task.completed), total, task.speed))

        class Line(ProgressColumn):
            """The last log line, cut to the width that the other columns leave."""

            def render(self, task: Task) -> Text:
                return Text(str(task.fields["line"]), style="dim", no_wrap=True, overflow="ellipsis")

        # highlight: rich would color numbers and paths.
        self._console = Console(stderr=True, highlight=False, no_color=bool(os.environ.get("NO_COLOR")))
        self._verbose = verbose
        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            Amount(Column(no_wrap=True)),
            TimeElapsedColumn(Column(no_wrap=True)),
            Line(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._text = ""
        self._started = 0.0

    def step(self, text: str) -> None:
        """Close the bar of the previous step and start a new one."""
        self.close()
        self._text, self._started = text, time.monotonic()
        self._task = self._progress.add_task(neutral(text), total=None, line="")
        self._progress.start()

    def log(self, line: str) -> None:
        """Show the line beside the bar, or in full when verbose."""
        clean = neutral(line)
        if self._verbose:
            # markup: rich would read `[...]` in the text as a style.
            self._console.print(f"  {clean}", markup=False)
        elif self._task is not None and clean.strip():
            self._progress.update(self._task, line=clean.strip())

    def advance(self, done: int, total: int | None) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        """Print a note above the bar."""
        for line in folded(f"note: {neutral(text)}", self._console.width):
            self._console.print(line, markup=False)

    def close(self) -> None:
        """Replace the bar by one line with the duration of the step."""
        if self._task is None:
            return
        self._progress.stop()
        self._progress.remove_task(self._task)
        self._task = None
        self._console.print(f"{neutral(self._text)} ({time.monotonic() - self._started:.1f} s)", markup=False)


class StepTimer(Forwarding):
    """A reporter that forwards everything to another one and records how long each step took.

    Args:
        reporter: the reporter that shows the progress.
        clock: returns seconds since any fixed moment.
    """

    def __init__(self, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(reporter)
        self._clock = clock
        self._lock = threading.Lock()
        self._done: list[tuple[str, float]] = []
        self._text, self._began = "begin", clock()

    def step(self, text: str) -> None:
        """End the previous step and begin this one."""
        self._end(text)
        super().step(text)

    def close(self) -> None:
        """End the last step."""
        self._end("end")
        super().close()

    @property
    def current(self) -> str:
        """The current step."""
        return self._text

    def rows(self) -> list[tuple[str, float]]:
        """Return the steps in order with their seconds; short ones as one row, `other`."""
        long = [(text, seconds) for text, seconds in self._done if seconds >= LEAST_S]
        rest = sum(seconds for _, seconds in self._done if seconds < LEAST_S)
        return [*long, ("other", rest)] if rest else long

    def total(self) -> float:
        """Return the sum of all steps in seconds."""
        return sum(seconds for _, seconds in self._done)

    def _end(self, following: str) -> None:
        with self._lock:
            now = self._clock()
            if now > self._began:
                self._done.append((self._text, now - self._began))
            self._text, self._began = following, now
