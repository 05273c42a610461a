"""Reporters: they receive the steps, progress, log lines and notes of long work.

Engines and runners call a `Reporter` and never print. `Silent` is for tests and `--progress quiet`;
`envkit.cli.console` has the reporters that write to the terminal.
"""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives the progress of long work. Every method returns at once and never raises."""

    def step(self, text: str) -> None:
        """Begin a new step: `pull base image`, `build`, `verify`."""

    def log(self, line: str) -> None:
        """Receive one line of an engine's or the payload's output; it may contain control characters."""

    def advance(self, done: int, total: int | None) -> None:
        """Receive the progress of the current step in its own unit (build steps or bytes)."""

    def note(self, text: str) -> None:
        """Receive something that the user should read but that is not an error: a fallback, a default."""

    def close(self) -> None:
        """End the current step: nothing is displayed until the next one begins. It may be called repeatedly."""


class Silent:
    """A reporter that ignores everything; the base class of reporters for one kind of event."""

    def step(self, text: str) -> None:
        """Ignore."""

    def log(self, line: str) -> None:
        """Ignore."""

    def advance(self, done: int, total: int | None) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def close(self) -> None:
        """Ignore."""


class Forwarding:
    """A reporter that passes everything on to another; the base class of reporters that change some events."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def step(self, text: str) -> None:
        """Pass the step on."""
        self._reporter.step(text)

    def log(self, line: str) -> None:
        """Pass the line on."""
        self._reporter.log(line)

    def advance(self, done: int, total: int | None) -> None:
        """Pass the progress on."""
        self._reporter.advance(done, total)

    def note(self, text: str) -> None:
        """Pass the note on."""
        self._reporter.note(text)

    def close(self) -> None:
        """Pass the end on."""
        self._reporter.close()


class Within(Forwarding):
    """A reporter that prefixes its steps with the name of a larger one: `lock: solve 4 conda specs`."""

    def __init__(self, reporter: Reporter, step: str) -> None:
        super().__init__(reporter)
        self._step = step

    def step(self, text: str) -> None:
        """Begin a step with the prefix."""
        self._reporter.step(f"{self._step}: {text}")


def counted(count: int, what: str) -> str:
    """Return a number with its noun: `1 image`, `2 images`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
