"""The progress of many builds at once: a live table on a terminal, lines with the image's name elsewhere."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from envkit.cli.console import amount
from envkit.ground.text import neutral
from envkit.report.reading import word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.live import Live
    from rich.table import Table

    from envkit.fleet.model import Outcome

_REFRESH = 4  # frames per second
_LINES = 12  # with more images than this, the table shows only those in progress or failed


@dataclass(slots=True)
class _Row:
    """The progress of one image."""

    status: str = "waiting"
    step: str = ""
    done: int = 0
    total: int | None = None
    began: float | None = None
    seconds: float | None = None


@dataclass(slots=True)
class ProgressTable:
    """Receives the events of all images, from any thread. This base class prints nothing (`--progress quiet`)."""

    names: Sequence[str] = ()
    clock: Callable[[], float] = time.monotonic
    rows: dict[str, _Row] = field(default_factory=dict)
    remarks: set[str] = field(default_factory=set)  # that were shown: many images give the same ones
    # Reentrant: printing above the live table also renders it (`table`), in the same thread.
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.rows |= {name: _Row() for name in self.names}

    def heard(self, event: tuple[str, str, Any]) -> None:
        """Receive an event from a worker: an image's name, a method of `Reporter`, its arguments."""
        name, method, arguments = event
        with self.lock:
            row = self.rows.setdefault(name, _Row())
            # Events may arrive after the outcome.
            if row.seconds is not None or (method == "note" and self._is_repeated(str(arguments[0]))):
                return
            if row.began is None:
                row.began, row.status = self.clock(), "at work"
            if method == "step":
                row.step, row.done, row.total = str(arguments[0]), 0, None
            elif method == "advance":
                row.done, row.total = arguments
            self.show(name, row, method, arguments)

    def _is_repeated(self, note: str) -> bool:
        repeated = note in self.remarks
        self.remarks.add(note)
        return repeated

    def ended(self, outcome: Outcome) -> None:
        """Receive the outcome of an image."""
        with self.lock:
            row = self.rows.setdefault(outcome.name, _Row())
            row.status, row.seconds = outcome.status, outcome.duration_s
            self.show_end(outcome)

    def show(self, name: str, row: _Row, method: str, arguments: Sequence[Any]) -> None:
        """Show an event."""

    def show_end(self, outcome: Outcome) -> None:
        """Show the outcome of an image."""

    def note(self, text: str) -> None:
        """Show a note about the whole run."""

    def close(self) -> None:
        """End the display."""


class Lines(ProgressTable):
    """One line per step of every image on stderr, with the image's name in front: for logs and CI."""

    def show(self, name: str, row: _Row, method: str, arguments: Sequence[Any]) -> None:
        """Print steps and notes."""
        del row
        if method == "step":
            self._write(f"{name}: {arguments[0]}")
        elif method == "note":
            self._write(f"{name}: note: {arguments[0]}")

    def show_end(self, outcome: Outcome) -> None:
        """Print the outcome of an image."""
        message = outcome.error if outcome.exit_code else outcome.place
        self._write(
            f"{outcome.name}: {word(outcome.status)} after {outcome.duration_s:.1f} s: {message or outcome.place or ''}"
        )

    def note(self, text: str) -> None:
        """Print a note."""
        self._write(f"note: {text}")

    def _write(self, line: str) -> None:
        _print(neutral(line), sys.stderr)


class JsonEvents(ProgressTable):
    """One JSON object per event on stderr: for programs."""

    def show(self, name: str, row: _Row, method: str, arguments: Sequence[Any]) -> None:
        """Emit the event with the image's name."""
        del row
        if method == "advance":
            self._emit("progress", name, done=arguments[0], total=arguments[1])
        else:
            self._emit(method, name, text=arguments[0])

    def show_end(self, outcome: Outcome) -> None:
        """Emit {"event": "end"}."""
        self._emit("end", outcome.name, status=outcome.status, exit_code=outcome.exit_code)

    def note(self, text: str) -> None:
        """Emit {"event": "note"}."""
        self._emit("note", None, text=text)

    def _emit(self, event: str, name: str | None, **fields: object) -> None:
        _print(json.dumps({"event": event, "image": name, **fields}), sys.stderr)


class LiveTable(ProgressTable):
    """A live table of the images with their states, and how many are done."""

    live: Live

    def __post_init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        ProgressTable.__post_init__(self)
        console = Console(stderr=True, highlight=False, no_color=bool(os.environ.get("NO_COLOR")))
        self.live = Live(
            get_renderable=self.table, console=console, refresh_per_second=_REFRESH, transient=True,
            # stdout has the data of the command, which must not become part of the display.
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self.live.start()

    def table(self) -> Table:
        """Return the table in its current state."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("image", "state", "s", "what"):
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        with self.lock:
            for name, row in self.shown():
                what = row.step + (f" {amount(row.done, row.total, None)}" if row.done else "")
                seconds = "" if row.began is None else f"{row.seconds or self.clock() - row.began:.0f}"
                table.add_row(*(Text(neutral(cell)) for cell in (name, word(row.status), seconds, what)))
            done = sum(row.seconds is not None for row in self.rows.values())
        table.add_row(Text(f"{done} of {len(self.rows)} done"), "", "", "")
        return table

    def shown(self) -> list[tuple[str, _Row]]:
        """Return all rows, or if there are many, those in progress, failed or not verified."""
        rows = list(self.rows.items())
        if len(rows) <= _LINES:
            return rows
        return [(name, row) for name, row in rows if row.status in ("at work", "failed", "unproved")][:40]

    def note(self, text: str) -> None:
        """Print a note above the table."""
        self.live.console.print(f"note: {neutral(text)}", markup=False)

    def show_end(self, outcome: Outcome) -> None:
        """Print the error of a failed image above the table."""
        if outcome.error is not None:
            self.live.console.print(f"{outcome.name}: {neutral(outcome.error)}", markup=False)

    def close(self) -> None:
        """Remove the table."""
        self.live.stop()


def progress_table(mode: str, names: Sequence[str]) -> ProgressTable:
    """Return the display for `--progress MODE`; auto is a table on a terminal and plain lines elsewhere."""
    if mode == "quiet":
        return ProgressTable(names)
    if mode == "json":
        return JsonEvents(names)
    if mode == "auto" and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return LiveTable(names)
    return Lines(names)


def _print(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except (OSError, ValueError):  # the reader of stderr is gone, which must not stop the work
        return
